#include "lib/data/similarity_sketch.hpp"

#include <algorithm>

#include "lib/base/require.hpp"
#include "lib/base/splitmix64.hpp"

namespace llmtrain::data {

namespace {

constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
constexpr int kHashBits = 52;  // of a value; the round stands above them
constexpr std::uint64_t kHashMask = (std::uint64_t{1} << kHashBits) - 1;
constexpr std::uint64_t kRoundStep = 0x9E3779B97F4A7C15u;
static_assert((2 * kMaxSketchEntries) < (std::uint64_t{1} << (64 - kHashBits)));

}  // namespace

Sketcher::Sketcher(std::size_t entries) : least_(entries) {
  require(entries >= 1 && entries <= kMaxSketchEntries, "a sketch of {} entries", entries);
}

void Sketcher::sketch(std::span<const std::uint64_t> elements, std::span<std::uint32_t> out) {
  require(!elements.empty() && out.size() == least_.size(), "{} elements, {} of {} entries",
          elements.size(), out.size(), least_.size());
  const std::uint64_t entries = least_.size();
  std::fill(least_.begin(), least_.end(), kEmpty);
  std::uint64_t* const least = least_.data();
  for (std::uint64_t round = 0; round < 2 * entries; ++round) {
    const std::uint64_t high = round << kHashBits;
    const std::uint64_t offset = round * kRoundStep;
    for (const std::uint64_t element : elements) {
      const std::uint64_t hash = mixed_bits(element + offset);
      const std::uint64_t entry =
          round < entries ? ((hash >> 32) * entries) >> 32 : round - entries;
      least[entry] = std::min(least[entry], high | (hash & kHashMask));
    }
    if (std::find(least_.begin(), least_.end(), kEmpty) == least_.end()) break;
  }
  for (std::size_t i = 0; i < entries; ++i) {
    out[i] = static_cast<std::uint32_t>(mixed_bits(least_[i]) >> 32);
  }
}

double estimated_jaccard(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) {
  require(a.size() == b.size() && !a.empty(), "sketches of {} and {} entries", a.size(), b.size());
  std::uint32_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1u : 0u;
  return static_cast<double>(equal) / static_cast<double>(a.size());
}

}  // namespace llmtrain::data
