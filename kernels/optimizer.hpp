#pragma once
/// Gradient norms, the decision whether and how a step updates, and updates of parameters. The
/// decision stays on the device: no update waits for the host.

#include <array>
#include <cmath>
#include <limits>

#include "kernels/elementwise.hpp"
#include "kernels/tensor_list.hpp"
#include "kernels/update_decision.hpp"
#include "kernels/update_rules.hpp"
#include "lib/tensor/stochastic_rounding.hpp"

namespace llmtrain::kernels {

/// out[i] = sum of the squares of gradient i. Gradients FP32 | FP64, of one dtype; an empty one may
/// be absent, and has the sum 0. out FP64 [gradients]. One launch for a list. The order of
/// summation is part of the contract:
/// - A block is 1,024 consecutive elements of a gradient (the last may be shorter). In g's type,
///   element e of a block adds its rounded square to lane e % 16; the lanes are then joined as a
///   tree: lane i += lane i + 8 for i < 8, then with 4, 2 and 1.
/// - Blocks are joined in FP64 by pairs of neighbours, level by level; the last of an odd level
///   passes unchanged. So aligned runs of 2^k blocks are subtrees, wherever a parameter is cut.
struct SquaredNorm {
  static constexpr std::string_view name = "squared_norm";
  static constexpr std::int64_t kBlock = 1024;
  static constexpr int kLanes = 16;
  /// A row of the table.
  struct Row {
    ListPlace place;
    const void* gradient;
  };
  static std::vector<Row> rows(std::span<const View> gradients);

  std::span<const View> gradients;
  /// rows(gradients) in the device's memory, uint8; may be absent for a list of one.
  View table;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return gradients.front().dtype; }
  std::array<std::int64_t, 4> sizes() const;
  /// A sum for each chunk of the list, which is a subtree.
  std::uint64_t workspace_bytes(int) const;
};
static_assert(kListChunk == 16 * SquaredNorm::kBlock);

/// Squared norms of gradients of which several ranks have summed runs of blocks. A run is 2^level
/// blocks of SquaredNorm (a gradient's last may be cut short), begins at a multiple of as many, and
/// a gradient's runs follow one another without a gap: their sums are subtrees of its tree, which
/// this completes. `runs` FP64 [n], `levels` int32 [n]; gradient i has runs [first[i], first[i +
/// 1]), `first` int32 [gradients + 1]; out FP64 [gradients].
struct JoinSquaredNorms {
  static constexpr std::string_view name = "join_squared_norms";
  View runs, levels, first;
  View out;
  void check() const;
  Cost cost() const;
  DType dtype() const { return runs.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {runs.numel(), out.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// One gradient's. Constexpr, so that device code has the very same operations.
  static constexpr double join(const double* runs, const std::int32_t* levels, std::int64_t count) {
    double sums[64] = {};
    std::int32_t level_of[64] = {};
    int depth = 0;  // subtrees that wait for their right neighbour, the smallest last
    for (std::int64_t i = 0; i < count; ++i) {
      sums[depth] = runs[i];
      level_of[depth++] = levels[i];
      while (depth > 1 && level_of[depth - 2] == level_of[depth - 1]) {
        --depth;
        sums[depth - 1] += sums[depth];
        ++level_of[depth - 1];
      }
    }
    for (; depth > 1; --depth) sums[depth - 2] += sums[depth - 1];
    return depth == 0 ? 0 : sums[0];
  }
};

/// g = min(max(g, -limit), limit). With `decision` (UpdateDecision) g is a gradient times its
/// loss_scale, and so is the limit; what is infinite then stays, for it says that the scale is too
/// large.
struct ClipByValue {
  static constexpr std::string_view name = "clip_by_value";
  View g;
  double limit = 0;
  View decision;
  /// For kernels of the CPU.
  double limit_now() const {
    return decision.defined() ? limit * decision.as<UpdateDecision>()->loss_scale : limit;
  }
  void check() const;
  Cost cost() const;
  DType dtype() const { return g.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {g.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Writes `decision` (UpdateDecision, of which it reads what a step finds there) from the squared
/// norms of all gradients, FP64 [n], joined as llmtrain::tree_sum joins them, and the loss, FP64
/// [1], or with the z-loss behind it [2]; without one (undefined) it counts as 0. Gradients were
/// multiplied with the decision's loss_scale; norm and clipping are those of the gradients
/// themselves. Clipping is that of torch.nn.utils.clip_grad_norm_, down to its 1e-6.
struct DecideUpdate {
  static constexpr std::string_view name = "decide_update";
  View squares, loss_sum, decision;
  double lr = 0;
  /// Where given (StepScalars), its lr and loss_limit count, as they are when the kernel runs.
  View scalars;
  double loss_limit = std::numeric_limits<double>::infinity();
  /// Infinite: gradients are not clipped.
  double max_norm = std::numeric_limits<double>::infinity();
  /// Adam's; 0 for updates that need no correction.
  double beta1 = 0, beta2 = 0;
  LossScaleRule loss_scale;
  void check() const;
  Cost cost() const;
  DType dtype() const { return squares.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {squares.numel()}; }
  /// Room for the sums.
  std::uint64_t workspace_bytes(int) const { return squares.bytes(); }

  std::int64_t num_losses() const { return loss_sum.defined() ? loss_sum.numel() : 0; }
  /// For kernels of the CPU.
  double lr_now() const { return scalars.defined() ? scalars.as<StepScalars>()->lr : lr; }
  double loss_limit_now() const {
    return scalars.defined() ? scalars.as<StepScalars>()->loss_limit : loss_limit;
  }
  /// The decision itself, after `squares` were added up. Constexpr, so that device code has the
  /// very same operations.
  constexpr void decide(double sum_of_squares, double loss, double z_loss, double lr_now,
                        double loss_limit_now, UpdateDecision& to) const {
    to.used_loss_scale = to.loss_scale;
    to.loss_sum = loss;
    to.z_loss_sum = z_loss;
    to.grad_norm = std::sqrt(sum_of_squares) / to.used_loss_scale;
    // Neither NaN nor infinite: their difference with themselves is NaN.
    const bool finite_gradients = to.grad_norm - to.grad_norm == 0;
    const bool finite_loss = loss - loss == 0 && z_loss - z_loss == 0;
    if (finite_loss) loss_scale.follow(finite_gradients, to);
    to.apply = finite_gradients && finite_loss && loss <= loss_limit_now ? 1 : 0;
    to.grad_scale = 1 / to.used_loss_scale;
    to.lr = lr_now;
    if (to.apply == 0) return;
    const double scale = max_norm / (to.grad_norm + 1e-6);
    if (scale < 1) to.grad_scale *= scale;
    to.updates += 1;
    to.bias_correction1 = 1 - std::pow(beta1, to.updates);
    to.sqrt_bias_correction2 = std::sqrt(1 - std::pow(beta2, to.updates));
  }
};

/// What every update shares. The master is `parameter` (FP32, or FP64), or, where that is absent,
/// what `compute_copy` (bf16) and `remainder` (uint16) are together: see
/// lib/tensor/split_master.hpp; or, without a remainder too, `compute_copy` (bf16) alone, widened
/// as it is read. `gradient` has the master's dtype and is multiplied by the decision's grad_scale
/// as it is read; `compute_copy` (optional beside a `parameter`; fp32 | bf16 | fp16) is written
/// with the new value, rounded to nearest, ties away from zero (to even in fp16), or, where it is
/// alone and `rounding` is on, by the words of the update number decision.updates:
/// lib/tensor/stochastic_rounding.hpp.
struct UpdateOperands {
  View parameter, gradient, compute_copy, remainder;
  StochasticRounding rounding = {};
  std::int64_t numel() const { return gradient.numel(); }
  DType master_dtype() const { return parameter.defined() ? parameter.dtype : DType::f32; }
};

/// How states of bf16 are rounded as they are written: state k of a parameter by the halves that
/// StochasticRounding::half() draws by keys[k], those of the update number decision.updates. States
/// are read widened, and what an update computes from them is what it would be in FP32. Not `on`:
/// states have the master's dtype.
struct StateRounding {
  StochasticRounding words;  // where elements are; its key is nobody's
  std::array<PhiloxKey, kMaxRuleStates> keys{};

  constexpr StochasticRounding of(int state) const {
    StochasticRounding one = words;
    one.key = keys[static_cast<std::size_t>(state)];
    return one;
  }
};

/// One parameter of an AdamUpdate. The moments are of the master's dtype, or, beside FP32, bf16
/// that is rounded by `rounding`, of which they are states 0 and 1.
struct AdamTensors {
  UpdateOperands to;
  View m, v;
  double lr_scale = 1, weight_decay = 0;
  StateRounding rounding = {};
};

/// Adam (arXiv 1412.6980) and AdamW (arXiv 1711.05101), PyTorch's order of operations:
///   in the gradient: g += weight_decay * p; before the step: p *= 1 - lr * weight_decay
///   m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2
///   p -= (lr / (1 - beta1^t)) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///   after the step: p *= 1 - lr * weight_decay,
/// with lr = lr_scale times the decision's, and t and both corrections from there; it must have
/// been made for the same betas. Where the decision does not apply, nothing is written. One launch
/// for a list of parameters, which agree in dtypes and in the form of their masters.
struct AdamUpdate {
  static constexpr std::string_view name = "adam_update";
  /// A row of the table.
  struct Row {
    ListPlace place;
    void *parameter, *gradient, *compute_copy, *remainder, *m, *v;
    double lr_scale, weight_decay;
    StochasticRounding rounding;
    StateRounding state_rounding;
  };
  static std::vector<Row> rows(std::span<const AdamTensors> tensors);

  std::span<const AdamTensors> tensors;
  /// rows(tensors) in the device's memory, uint8; may be absent for a list of one.
  View table;
  View decision;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  WeightDecay decay = WeightDecay::before_step;
  void check() const;
  Cost cost() const;
  std::int64_t numel() const;
  DType dtype() const { return tensors.front().to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// One parameter of a RuleUpdate, with as many states as the rule has: of the master's dtype, or,
/// beside FP32, bf16 that is rounded by `rounding`.
struct RuleTensors {
  UpdateOperands to;
  std::array<View, kMaxRuleStates> states;
  double lr_scale = 1, weight_decay = 0;
  StateRounding rounding = {};
};

/// An update by any rule of kernels/update_rules.hpp, with lr = lr_scale times the decision's.
/// Where the decision does not apply, nothing is written. One launch for a list of parameters,
/// which agree in dtypes and in the form of their masters.
struct RuleUpdate {
  static constexpr std::string_view name = "rule_update";
  /// A row of the table.
  struct Row {
    ListPlace place;
    void *parameter, *gradient, *compute_copy, *remainder;
    void* states[kMaxRuleStates];
    double lr_scale, weight_decay;
    StochasticRounding rounding;
    StateRounding state_rounding;
  };
  static std::vector<Row> rows(std::span<const RuleTensors> tensors);

  std::span<const RuleTensors> tensors;
  /// rows(tensors) in the device's memory, uint8; may be absent for a list of one.
  View table;
  View decision;
  UpdateRule rule;
  WeightDecay decay = WeightDecay::in_gradient;
  void check() const;
  Cost cost() const;
  std::int64_t numel() const;
  DType dtype() const { return tensors.front().to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// p = (1 - lr weight_decay) p + lr factor d, or with `decay_last` (1 - lr weight_decay) (p + lr
/// factor d), where `to.gradient` is the direction d: of the master's dtype, or bf16 or fp16 beside
/// FP32. lr = lr_scale times the decision's, whose
/// grad_scale has no part in it. Where the decision does not apply, nothing is written.
struct StepUpdate {
  static constexpr std::string_view name = "step_update";
  UpdateOperands to;
  View decision;
  double lr_scale = 1, weight_decay = 0, factor = -1;
  bool decay_last = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {to.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// A factor that waits for a step's decision. Constexpr because device code forms it too.
struct DecidedScale {
  double value = 1;
  /// Times the decision's grad_scale.
  bool clipped = false;

  constexpr double of(const UpdateDecision& d) const {
    return clipped ? value * d.grad_scale : value;
  }
};

/// A linear part of an update that is made of several kernels: ScaleCast by what `scale` is of the
/// decision where that applies; elsewhere y stays as it is.
struct ScaleUpdate {
  static constexpr std::string_view name = "scale_update";
  View x, y, decision;
  DecidedScale scale;
  bool accumulate = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
  /// The same with the numbers of a decision that applies.
  ScaleCast as_scale_cast(const UpdateDecision& d) const {
    return {.x = x, .y = y, .scale = scale.of(d), .accumulate = accumulate};
  }
};

}  // namespace llmtrain::kernels
