#pragma once
/// RMSNorm over each head of q and k, and RoPE behind it, in one pass each way.

#include "kernels/norm.hpp"

namespace llmtrain::kernels {

/// Which heads of a row are q's, and what turns them. The q heads and then the k heads lie side by
/// side in rows of (q_heads + k_heads) * head_dim columns; norm i is head i % heads of row
/// i / heads. Tables, positions and `rotary_dim` are those of Rope (kernels/attention.hpp).
struct NormedHeads {
  std::int64_t q_heads = 0;
  std::int64_t head_dim = 0, rotary_dim = 0;
  View cosine, sine, position;
};

/// y = RoPE(n * weight) with n = x * rstd and rstd = 1/sqrt(mean(x^2) + eps) of each head, weight
/// q_weight or k_weight [head_dim] (dtype of x or fp32). All of it in FP32 (FP64 for fp64), rounded
/// once. x, y [rows, heads * head_dim] in compute dtype (fp64 | fp32 | bf16 | fp16), strided,
/// apart; rstd [rows * heads] FP32 (FP64 for fp64).
struct HeadNormRope {
  static constexpr std::string_view name = "head_norm_rope";
  NormedHeads heads;
  View x, q_weight, k_weight;
  View y, rstd;
  double eps = 1e-5;
  NormRows norms() const { return NormRows::of(x, heads.head_dim); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {norms().count(x), norms().width}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// The gradients of HeadNormRope: with g the gradient of n * weight, which is dy turned back,
///   dx = rstd (g weight - n mean(g weight n)), rounded once; dx may alias dy;
///   dweight[j] += sum of g[j] n[j] over the norms of q, or of k, in FP32 (FP64 for fp64).
/// The order of these sums is NormBackward's: the q heads (k heads) of all rows, in the order of
/// their norms, are cut into blocks of kRowsPerBlock; each is summed in ascending order from zero,
/// and the blocks' sums are added to the sinks in ascending order.
struct HeadNormRopeBackward {
  static constexpr std::string_view name = "head_norm_rope_backward";
  NormedHeads heads;
  View dy, x, q_weight, k_weight, rstd;
  View dx, dq_weight, dk_weight;
  NormRows norms() const { return NormRows::of(dy, heads.head_dim); }
  /// Norms of q, and those of k.
  std::int64_t num_q() const { return dy.rows() * heads.q_heads; }
  std::int64_t num_k() const { return norms().count(dy) - num_q(); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return dy.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {norms().count(dy), norms().width}; }
  /// A sum for each block of q's, then of k's.
  std::uint64_t workspace_bytes(int threads) const;
};

}  // namespace llmtrain::kernels
