#pragma once
/// Column sums in two stages: every block of rows on its own, then the blocks in order.

#include <vector>

#include "kernels/cpu/parallel.hpp"
#include "kernels/row_blocks.hpp"

namespace llmtrain::kernels::fast {

/// sink[j] += partial[b * cols + j] for ascending blocks b.
inline void join_row_blocks(int threads, std::int64_t blocks, std::int64_t cols,
                            const float* partial, float* sink) {
  constexpr std::int64_t kColumnsPerTask = 1024;
  parallel_blocks(threads, cols, kColumnsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      for (std::int64_t j = begin; j < end; ++j) sink[j] += partial[b * cols + j];
    }
  });
}

void add_column_sum_row(std::vector<KernelRow>& rows);

}  // namespace llmtrain::kernels::fast
