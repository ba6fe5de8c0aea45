#pragma once
/// Blocks of rows in which column sums are formed. Their size is fixed, so that a sum depends on
/// neither the number of threads nor the device that adds it up.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

inline constexpr std::int64_t kRowsPerBlock = 64;

constexpr std::int64_t num_row_blocks(std::int64_t rows,
                                      std::int64_t rows_per_block = kRowsPerBlock) {
  return (rows + rows_per_block - 1) / rows_per_block;
}

}  // namespace llmtrain::kernels
