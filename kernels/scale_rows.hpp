#pragma once
/// Rows times numbers: experts' outputs and the weights that a router gave them.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// y[p] = weight[source[p]] * x[p]. x and y [n, cols] in one dtype, strided; source int32 [n], a
/// permutation; weight [n] in any shape, fp32 (fp64).
struct ScaleRows {
  static constexpr std::string_view name = "scale_rows";
  View x, source, weight;
  View y;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// dx[p] = weight[source[p]] * dy[p], dweight[source[p]] = sum_j dy[p, j] x[p, j], summed in the
/// type of the weights. dx may alias dy. Operands as in ScaleRows; dweight as weight.
struct ScaleRowsBackward {
  static constexpr std::string_view name = "scale_rows_backward";
  View x, source, weight, dy;
  View dx, dweight;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
