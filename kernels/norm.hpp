#pragma once
/// LayerNorm and RMSNorm, fused with the residual sum that feeds them.

#include "kernels/row_blocks.hpp"

namespace llmtrain::kernels {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };

/// Rows that are normalised alone: the rows of a matrix, or, with heads of `head_dim` columns side
/// by side, every head of every row. Norm i is head i % heads of row i / heads.
struct NormRows {
  std::int64_t heads = 1;
  std::int64_t width = 0;  // columns of one

  static NormRows of(const View& x, std::int64_t head_dim) {
    return head_dim == 0 ? NormRows{1, x.cols()} : NormRows{x.cols() / head_dim, head_dim};
  }
  std::int64_t count(const View& x) const { return x.rows() * heads; }
  /// The first element of norm i in a matrix of these rows.
  template <class T>
  T* at(const View& x, std::int64_t i) const {
    return x.row<T>(i / heads) + i % heads * width;
  }
};

/// s = x + residual (or x when there is no residual); y = normalise(s) * (weight_offset + weight)
/// (+ bias).
///
/// layer_norm: (s - mean) * rstd with biased variance, rstd = 1/sqrt(var + eps).
/// rms_norm: s * rstd with rstd = 1/sqrt(mean(s^2) + eps).
/// x, residual, sum, y: [..., hidden] in compute dtype (fp64 | fp32 | bf16 | fp16); with residual,
/// `sum` is written and may alias x or residual. weight, bias [hidden]: dtype of x or fp32. mean,
/// rstd [rows]: fp32 (fp64 for fp64); mean only for layer_norm. Statistics in FP32, computed from
/// the rounded sum. With `head_dim`, x [rows, heads * head_dim] and y are strided, every head is
/// normalised alone by weight [head_dim], statistics are [rows * heads], and there is no residual.
struct NormForward {
  static constexpr std::string_view name = "norm_forward";
  NormKind kind = NormKind::rms_norm;
  View x, residual, sum;
  View weight, bias;
  View y, mean, rstd;
  double eps = 1e-5;
  double weight_offset = 0;
  std::int64_t head_dim = 0;  // 0 = whole rows
  NormRows norms() const { return NormRows::of(x, head_dim); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const {
    return {norms().count(x), norms().width, residual.defined()};
  }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Rows of the blocks in which NormBackward sums whole rows: fewer than of other column sums, for
/// a thread block of a GPU that holds a row goes through one of these row by row, and there must be
/// one for every multiprocessor.
inline constexpr std::int64_t kNormRowsPerBlock = 32;

/// Both gradients of a norm. dx = (normalise backward of dy) + dsum, where dsum (optional) is the
/// gradient that reaches s along the residual stream; dx may alias dy or dsum.
/// dweight[j] += sum_i dy[i,j] * normalised[i,j]; dbias[j] += sum_i dy[i,j] (optional). Sinks are
/// FP32 (FP64 for fp64). The rows of each row block are summed in ascending order
/// from zero, then the blocks' sums are added to the sinks in ascending order.
/// `head_dim` as in NormForward: then dy, s and dx are strided, the rows are those of NormRows, and
/// there is no dsum.
struct NormBackward {
  static constexpr std::string_view name = "norm_backward";
  NormKind kind = NormKind::rms_norm;
  View dy, dsum, s, weight, mean, rstd;
  View dx, dweight, dbias;
  double weight_offset = 0;
  std::int64_t head_dim = 0;
  NormRows norms() const { return NormRows::of(dy, head_dim); }
  std::int64_t rows_per_block() const { return head_dim == 0 ? kNormRowsPerBlock : kRowsPerBlock; }
  std::int64_t row_blocks() const { return num_row_blocks(norms().count(dy), rows_per_block()); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return dy.dtype; }
  std::array<std::int64_t, 4> sizes() const {
    return {norms().count(dy), norms().width, dsum.defined()};
  }
  /// The sums of row blocks: [row blocks, width] for the weight, and behind them for the bias.
  std::uint64_t workspace_bytes(int threads) const;
};

}  // namespace llmtrain::kernels
