// Compressed text from arbitrary bytes: refused, or the same text however the input is cut into
// reads, within the limits. The first byte chooses the format.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "lib/base/error.hpp"
#include "lib/data/decompress.hpp"

namespace {

using namespace llmtrain;

constexpr data::DecompressLimits kLimits{.max_ratio = 100, .max_bytes = 2 << 20};

std::optional<std::string> expand(data::Compression compression, std::string_view stored,
                                  std::size_t step) {
  std::string text;
  std::size_t at = 0;
  const auto read = [&](std::span<std::byte> out) {
    const std::size_t count = std::min({out.size(), step, stored.size() - at});
    std::memcpy(out.data(), stored.data() + at, count);
    at += count;
    return count;
  };
  try {
    data::decompress(compression, read, stored.size(), kLimits, "fuzz",
                     [&](std::span<const std::byte> bytes) {
                       text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                     });
  } catch (const DataError&) {
    return std::nullopt;
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  const auto compression = bytes[0] % 2 == 0 ? data::Compression::gzip : data::Compression::zstd;
  const std::string_view stored(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const auto whole = expand(compression, stored, size);
  if (whole != expand(compression, stored, 3)) std::abort();
  if (whole && whole->size() > kLimits.max_bytes) std::abort();
  return 0;
}
