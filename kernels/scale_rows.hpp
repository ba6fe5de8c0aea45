#pragma once
/// Rows times numbers: experts' outputs and the weights that a router gave them.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// y[i] = weight[i] * x[i]. x and y [n, cols] in one dtype, strided; weight [n], fp32 (fp64).
struct ScaleRows {
  static constexpr std::string_view name = "scale_rows";
  View x, weight;
  View y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// dx[i] = weight[i] * dy[i], dweight[i] = sum_j dy[i, j] x[i, j], summed in the type of the
/// weights. dx may alias dy. Operands as in ScaleRows; dweight as weight.
struct ScaleRowsBackward {
  static constexpr std::string_view name = "scale_rows_backward";
  View x, weight, dy;
  View dx, dweight;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
