#pragma once
/// A gradient's squared norm from runs of its blocks, as the ranks that share it sum them.

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/optimizer.hpp"

namespace llmtrain::test {

struct NormRuns {
  std::vector<View> gradients;
  std::vector<std::int32_t> levels;
};

/// The runs of `gradient` when it is cut before the blocks in `cuts`, ascending.
inline NormRuns norm_runs(const Tensor& gradient, std::vector<std::int64_t> cuts) {
  constexpr std::int64_t kBlock = kernels::SquaredNorm::kBlock;
  NormRuns runs;
  const std::int64_t n = gradient.numel();
  cuts.push_back((n + kBlock - 1) / kBlock);
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    while (begin < end) {
      std::int64_t blocks = 1;
      std::int32_t level = 0;
      while (begin % (2 * blocks) == 0 && begin + 2 * blocks <= end) {
        blocks *= 2;
        ++level;
      }
      const std::int64_t first = begin * kBlock;
      runs.gradients.push_back(
          gradient.columns(first, std::min(n, first + blocks * kBlock) - first));
      runs.levels.push_back(level);
      begin += blocks;
    }
  }
  return runs;
}

}  // namespace llmtrain::test
