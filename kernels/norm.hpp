#pragma once
/// LayerNorm and RMSNorm, fused with the residual sum that feeds them.

#include "kernels/row_blocks.hpp"

namespace llmtrain::kernels {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };

/// s = x + residual (or x when there is no residual); y = normalise(s) * weight (+ bias).
///
/// layer_norm: (s - mean) * rstd with biased variance, rstd = 1/sqrt(var + eps).
/// rms_norm: s * rstd with rstd = 1/sqrt(mean(s^2) + eps).
/// x, residual, sum, y: [..., hidden] in compute dtype (fp64 | fp32 | bf16); with residual, `sum`
/// is written and may alias x or residual. weight, bias [hidden]: dtype of x or fp32. mean, rstd
/// [rows]: fp32 (fp64 for fp64); mean only for layer_norm. Statistics in FP32, computed from the
/// rounded sum.
struct NormForward {
  static constexpr std::string_view name = "norm_forward";
  static constexpr bool capturable = true;
  NormKind kind = NormKind::rms_norm;
  View x, residual, sum;
  View weight, bias;
  View y, mean, rstd;
  double eps = 1e-5;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols(), residual.defined()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Gradient with respect to s: dx = (normalise backward of dy) + dsum, where dsum (optional) is the
/// gradient that reaches s along the residual stream. dx may alias dy or dsum.
struct NormInputGrad {
  static constexpr std::string_view name = "norm_input_grad";
  static constexpr bool capturable = true;
  NormKind kind = NormKind::rms_norm;
  View dy, dsum, s, weight, mean, rstd;
  View dx;
  void check() const;
  Cost cost() const;
  DType dtype() const { return dy.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {dy.rows(), dy.cols(), dsum.defined()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// dweight[j] += sum_i dy[i,j] * normalised[i,j]; dbias[j] += sum_i dy[i,j] (optional). Sinks are
/// FP32 (FP64 for fp64). The rows of each row block are summed in ascending order from zero, then
/// the blocks' sums are added to the sinks in ascending order.
struct NormWeightGrad {
  static constexpr std::string_view name = "norm_weight_grad";
  static constexpr bool capturable = true;
  NormKind kind = NormKind::rms_norm;
  View dy, s, mean, rstd;
  View dweight, dbias;
  void check() const;
  Cost cost() const;
  DType dtype() const { return dy.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {dy.rows(), dy.cols()}; }
  std::uint64_t workspace_bytes(int threads) const;
};

}  // namespace llmtrain::kernels
