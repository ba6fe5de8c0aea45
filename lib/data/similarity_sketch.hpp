#pragma once
/// Short sketches of sets; the share of equal entries of two estimates their Jaccard similarity.
///
/// Dahlgaard, Knudsen, Thorup, "Fast similarity sketching", FOCS 2017: one hash per element and
/// round instead of one per element and entry as in MinHash, with the same unbiased estimate and
/// standard error sqrt(J (1 - J) / entries), for small sets too. Round i throws every element into
/// a random entry (from round `entries` on, into entry i - entries), which keeps the least
/// (round, hash); rounds end when every entry has one, for large sets after the first or second.

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain::data {

inline constexpr std::size_t kMaxSketchEntries = 1024;

/// Makes sketches; keeps its scratch memory between calls. For one thread.
class Sketcher {
 public:
  /// 1 <= entries <= kMaxSketchEntries
  explicit Sketcher(std::size_t entries);
  /// `elements`: 64-bit hashes of a set that is not empty; repeated ones count once.
  void sketch(std::span<const std::uint64_t> elements, std::span<std::uint32_t> out);

 private:
  std::vector<std::uint64_t> least_;
};

/// Of two sketches with as many entries.
double estimated_jaccard(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b);

}  // namespace llmtrain::data
