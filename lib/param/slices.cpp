#include "lib/param/slices.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

// The place within `tensor` nearest to element `at` of it where a cut may be.
std::int64_t nearest_cut(const SlicedTensor& tensor, std::int64_t at) {
  const std::int64_t below = at / tensor.step * tensor.step;
  const std::int64_t above = std::min(below + tensor.step, tensor.elements);
  return at - below <= above - at ? below : above;
}

}  // namespace

std::vector<std::int64_t> slice_cuts(std::span<const SlicedTensor> unit, int ranks) {
  require(ranks > 0, "elements divided among {} ranks", ranks);
  std::int64_t total = 0;
  for (const SlicedTensor& tensor : unit) total += tensor.elements;
  std::vector<std::int64_t> cuts{0};
  auto tensor = unit.begin();
  std::int64_t begin = 0;  // of `tensor` in the line
  for (int r = 1; r < ranks; ++r) {
    const std::int64_t even = total / ranks * r + total % ranks * r / ranks;
    while (tensor != unit.end() && begin + tensor->elements <= even) {
      begin += tensor->elements;
      ++tensor;
    }
    cuts.push_back(tensor == unit.end() ? total : begin + nearest_cut(*tensor, even - begin));
  }
  cuts.push_back(total);
  return cuts;
}

std::vector<std::int64_t> slice_counts(std::span<const std::int64_t> cuts, std::int64_t begin,
                                       std::int64_t end) {
  std::vector<std::int64_t> counts;
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    counts.push_back(
        std::max<std::int64_t>(0, std::min(end, cuts[r + 1]) - std::max(begin, cuts[r])));
  }
  return counts;
}

}  // namespace llmtrain
