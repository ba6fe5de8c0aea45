#pragma once
/// How the elements of parameters are divided among ranks that would otherwise all keep the same
/// optimizer state (ZeRO, arXiv 1910.02054).

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

/// Where a cut may be: at multiples of so many elements of a tensor, or of more.
inline constexpr std::int64_t kSliceElements = 1024;

/// A tensor of a unit: what lies one after another in the line of elements that is cut.
struct SlicedTensor {
  std::int64_t elements = 0;
  /// Cuts lie at multiples of so many of its elements; all of them: no cut lies within.
  std::int64_t step = kSliceElements;
};

/// Where the line of `unit`'s elements is cut for `ranks` owners: rank r owns [cuts[r], cuts[r+1]),
/// perhaps nothing. Every cut is the place nearest to an even division where one may be, the lower
/// of two, so that no element-wise rank owns more than kSliceElements beyond its share.
std::vector<std::int64_t> slice_cuts(std::span<const SlicedTensor> unit, int ranks);

/// What each owner has of the elements [begin, end) of the line: parts of a collective over them.
std::vector<std::int64_t> slice_counts(std::span<const std::int64_t> cuts, std::int64_t begin,
                                       std::int64_t end);

}  // namespace llmtrain
