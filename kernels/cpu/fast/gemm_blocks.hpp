#pragma once
/// What the parts of gemm.cpp that are compiled per instruction set are given.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::fast {

/// A matrix as lines (rows of op(a), columns of op(b)) along which the product sums.
struct GemmOperand {
  const float* data;
  std::int64_t line_stride;   // from line to line
  std::int64_t depth_stride;  // from element to element of a line

  static GemmOperand rows_of(const View& a, bool transposed) {
    return {a.as<float>(), transposed ? 1 : a.row_stride, transposed ? a.row_stride : 1};
  }
  static GemmOperand columns_of(const View& b, bool transposed) {
    return {b.as<float>(), transposed ? b.row_stride : 1, transposed ? 1 : b.row_stride};
  }
  GemmOperand at(std::int64_t line, std::int64_t depth) const {
    return {data + line * line_stride + depth * depth_stride, line_stride, depth_stride};
  }
};

/// c[rows, cols] = or += a b, both packed in panels.
struct GemmBlock {
  std::int64_t rows, cols, depth;
  const float* a;
  const float* b;
  float* c;
  std::int64_t c_stride;
  bool add;
  const float* bias;  // of the block's columns, or null
};

}  // namespace llmtrain::kernels::fast
