#pragma once
/// Optimizer updates and gradient norms over one parameter's elements.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// out[0] = sum of g^2. g FP32 | FP64; out FP64 [1]. The order of summation is part of the
/// contract:
/// - A block is 1,024 consecutive elements (the last may be shorter). In g's type, element e of a
/// block
///   adds its rounded square to lane e % 16; the lanes are then joined as a tree: lane i += lane i
///   + 8 for i < 8, then with 4, 2 and 1.
/// - Blocks are joined in FP64 by pairs of neighbours, level by level; the last of an odd level
/// passes
///   unchanged. So aligned runs of 2^k blocks are subtrees, wherever a parameter is cut.
struct SquaredNorm {
  static constexpr std::string_view name = "squared_norm";
  static constexpr bool capturable = true;
  static constexpr std::int64_t kBlock = 1024;
  static constexpr int kLanes = 16;
  View g;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  std::uint64_t workspace_bytes(int threads) const;
};

/// g = min(max(g, -limit), limit).
struct ClipByValue {
  static constexpr std::string_view name = "clip_by_value";
  static constexpr bool capturable = true;
  View g;
  double limit = 0;
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// What every update shares: `parameter` is the master (FP32, or FP64), `gradient` has its dtype
/// and is multiplied by grad_scale (clipping) as it is read; `compute_copy` (optional; fp32 | bf16)
/// is written with the rounded new value.
struct UpdateOperands {
  View parameter, gradient, compute_copy;
  double grad_scale = 1;
};

/// Adam (arXiv 1412.6980) and AdamW (arXiv 1711.05101), PyTorch's order of operations:
///   decoupled: p *= 1 - lr * weight_decay; else g += weight_decay * p
///   m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2
///   p -= (lr / (1 - beta1^t)) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps),  t = step >= 1.
struct AdamUpdate {
  static constexpr std::string_view name = "adam_update";
  static constexpr bool capturable = true;
  UpdateOperands to;
  View m, v;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = true;
  std::int64_t step = 1;
  void check() const;
  Cost cost() const;
  DType dtype() const { return to.parameter.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {to.parameter.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// SGD with optional (Nesterov) momentum, PyTorch's form: g += weight_decay * p;
/// b = first ? g : momentum b + (1 - dampening) g; p -= lr * (nesterov ? g + momentum b : b).
/// `momentum_buffer` is undefined for plain SGD.
struct SgdUpdate {
  static constexpr std::string_view name = "sgd_update";
  static constexpr bool capturable = true;
  UpdateOperands to;
  View momentum_buffer;
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return to.parameter.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {to.parameter.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
