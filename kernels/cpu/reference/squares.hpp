#pragma once
/// Sums of squares in the order of kernels::SquaredNorm.

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/optimizer.hpp"
#include "lib/base/tree_sum.hpp"

namespace llmtrain::kernels::reference {

/// Of at most a block of SquaredNorm.
template <class T>
double squares_of_block(const T* g, std::int64_t count) {
  std::array<T, SquaredNorm::kLanes> lanes{};
  for (std::int64_t e = 0; e < count; ++e) lanes[e % SquaredNorm::kLanes] += g[e] * g[e];
  for (int width = SquaredNorm::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

template <class T>
double sum_of_squares(const T* g, std::int64_t count) {
  std::vector<double> blocks;
  for (std::int64_t begin = 0; begin < count; begin += SquaredNorm::kBlock) {
    blocks.push_back(squares_of_block(g + begin, std::min(SquaredNorm::kBlock, count - begin)));
  }
  return tree_sum(blocks);
}

}  // namespace llmtrain::kernels::reference
