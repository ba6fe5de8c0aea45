// Token files of llm.c.
#include <algorithm>
#include <array>
#include <cstring>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/data/token_format.hpp"

namespace llmtrain::data {

namespace {

constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);
// Multiple-choice questions, which llm.c writes beside token files.
constexpr std::int32_t kEvaluationMagic = 20240522;

struct Kind {
  std::int32_t magic;
  std::int32_t version;
  IdType type;
};
constexpr std::array kKinds{Kind{20240520, 1, IdType::u16}, Kind{20240801, 7, IdType::u32}};

const Kind* kind_of(std::int32_t magic) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const Kind& kind) { return kind.magic == magic; });
  return found == kKinds.end() ? nullptr : &*found;
}

}  // namespace

bool recognises_llmc(const std::filesystem::path& path) {
  if (path.extension() != ".bin") return false;
  const File file = File::open_read(path);
  std::int32_t magic = 0;
  if (file.size() < sizeof magic) return false;
  file.read_at(0, std::as_writable_bytes(std::span(&magic, 1)));
  return kind_of(magic) != nullptr || magic == kEvaluationMagic;
}

TokenLayout open_llmc(const std::filesystem::path& path) {
  TokenLayout layout;
  layout.files.push_back(MappedFile::open(path));
  const std::span<const std::byte> bytes = layout.files.back().bytes();
  const std::string name = path.string();
  require<DataError>(bytes.size() >= kHeaderBytes,
                     "{}: {} bytes are too short for the header of an llm.c token file, which has "
                     "{} (truncated?); copy or write it again",
                     name, bytes.size(), kHeaderBytes);
  std::array<std::int32_t, 3> header;
  std::memcpy(header.data(), bytes.data(), sizeof header);
  const auto [magic, version, count] = header;
  require<DataError>(magic != kEvaluationMagic,
                     "{}: magic {} at offset 0: questions for an evaluation with llm.c, no text to "
                     "train on; leave it out of the data sources",
                     name, magic);
  const Kind* kind = kind_of(magic);
  require<DataError>(kind != nullptr,
                     "{}: magic {} at offset 0, but an llm.c token file has {} or {}; name only "
                     "such files in the source",
                     name, magic, kKinds[0].magic, kKinds[1].magic);
  require<DataError>(version == kind->version,
                     "{}: version {} at offset 4, but llm.c token files with magic {} have {}; "
                     "write it again with a current llm.c",
                     name, version, magic, kind->version);
  require<DataError>(
      count > 0, "{}: {} tokens at offset 8: nothing to train on; leave it out of the data sources",
      name, count);
  const std::uint64_t expected =
      kHeaderBytes + static_cast<std::uint64_t>(count) * size_of(kind->type);
  require<DataError>(bytes.size() == expected,
                     "{}: {} tokens at offset 8 make a file of {} bytes, but it has {} (truncated, "
                     "or still being written?); copy or write it again",
                     name, count, expected, bytes.size());
  layout.type = kind->type;
  layout.ids = bytes.subspan(kHeaderBytes);
  layout.ids_offset = kHeaderBytes;
  return layout;
}

}  // namespace llmtrain::data
