#pragma once
/// Second moments that the elements of a block share: Adam-mini (arXiv 2406.16793), and of factored
/// moments those of a row or a column. A block is `block` consecutive elements of a parameter.

#include "kernels/optimizer.hpp"
#include "lib/base/plain_normal.hpp"

namespace llmtrain::kernels {

/// out[i] = sum of the squares of block i of g, in the order in which SquaredNorm sums a gradient
/// of just these elements. g FP32 | FP64 [n * block]; out FP64 [n].
struct BlockSquares {
  static constexpr std::string_view name = "block_squares";
  View g;
  std::int64_t block = 1;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {out.numel(), block}; }
  std::uint64_t workspace_bytes(int) const { return chunk_sums_bytes(out.numel(), block); }
};

/// moment[i] = beta2 moment[i] + (1 - beta2) (mean[i] + eps), where mean[i] is that of the squares
/// of the elements of block i: `squares` FP64 [n] are their sums, of `count` elements each, and of
/// a gradient each is times the decision's grad_scale. With `decay_power` beta2 is 1 -
/// t^-decay_power in update t. moment FP32 | FP64 [n]. Where the decision does not apply, nothing
/// is written.
struct BlockMoments {
  static constexpr std::string_view name = "block_moments";
  View squares, moment, decision;
  double beta2 = 0.999;
  std::int64_t count = 1;
  double eps = 0, decay_power = 0;
  bool of_gradient = true;
  void check() const;
  Cost cost() const;
  DType dtype() const { return moment.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {moment.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// By arithmetic that devices have alike, unlike std::pow.
  constexpr double decay(const UpdateDecision& d) const {
    return decay_power == 0 ? beta2 : 1 - plain_exp(-decay_power * plain_log(d.updates));
  }
  /// One block's. Constexpr, so that device code has the very same operations.
  template <class T>
  constexpr T advanced(T moment_now, double sum, double beta, const UpdateDecision& d) const {
    const double scale = of_gradient ? d.grad_scale * d.grad_scale : 1;
    const double mean = sum * scale / static_cast<double>(count) + eps;
    return static_cast<T>(beta) * moment_now + static_cast<T>((1 - beta) * mean);
  }
};

/// AdamW whose second moment is one number per block, which BlockMoments has advanced:
///   m = beta1 m + (1 - beta1) g; p *= 1 - lr * weight_decay;
///   p -= (lr / (1 - beta1^t)) / (sqrt(moment) / sqrt(1 - beta2^t) + eps) * m
/// or, with `decay_last`, p shrunk after that; with lr = lr_scale times the decision's, and
/// corrections from there. moment [numel / block], m [numel], in the master's dtype. Where the
/// decision does not apply, nothing is written.
struct BlockAdamUpdate {
  static constexpr std::string_view name = "block_adam_update";
  UpdateOperands to;
  View m, moment, decision;
  std::int64_t block = 1;
  double lr_scale = 1, weight_decay = 0, beta1 = 0.9, eps = 1e-8;
  bool decay_last = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {to.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// As in update_scalars.hpp.
template <class T>
struct BlockAdamScalars {
  T grad_scale, kept_before, kept_after, beta1, one_minus_beta1, step_size, sqrt_bias_correction2,
      eps;
  std::uint64_t update;

  constexpr BlockAdamScalars(const BlockAdamUpdate& u, const UpdateDecision& d)
      : grad_scale(static_cast<T>(d.grad_scale)),
        kept_before(static_cast<T>(u.decay_last ? 1 : kept(u, d))),
        kept_after(static_cast<T>(u.decay_last ? kept(u, d) : 1)),
        beta1(static_cast<T>(u.beta1)),
        one_minus_beta1(static_cast<T>(1 - u.beta1)),
        step_size(static_cast<T>(d.lr * u.lr_scale / d.bias_correction1)),
        sqrt_bias_correction2(static_cast<T>(d.sqrt_bias_correction2)),
        eps(static_cast<T>(u.eps)),
        update(static_cast<std::uint64_t>(d.updates)) {}

  /// What a block's elements lose for each of their first moments.
  constexpr T step(T moment) const {
    return step_size / (std::sqrt(moment) / sqrt_bias_correction2 + eps);
  }
  /// The new p; advances m.
  constexpr T apply(T p, T g, T& m, T step_of_block) const {
    m = beta1 * m + one_minus_beta1 * (g * grad_scale);
    return (p * kept_before - step_of_block * m) * kept_after;
  }

 private:
  static constexpr double kept(const BlockAdamUpdate& u, const UpdateDecision& d) {
    return 1 - d.lr * u.lr_scale * u.weight_decay;
  }
};

}  // namespace llmtrain::kernels
