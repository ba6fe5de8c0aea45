#pragma once
/// What a step's update obeys, as it stands on the device.

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

/// What DecideUpdate makes of a step's gradients: updates obey it, the host reads it later. On the
/// device these numbers lie side by side in an FP64 tensor [kScalars].
struct UpdateDecision {
  static constexpr std::int64_t kScalars = 12;
  /// Of the step's trained tokens, in nats.
  double loss_sum = 0;
  /// Global L2 norm, before clipping by it.
  double grad_norm = 0;
  /// 1, or 0 when a loss or the norm is NaN or infinite, or the loss above its limit: parameters
  /// and states then stay as they are, to the bit.
  double apply = 0;
  /// Factor on every gradient as an update reads it: clipping, and what undoes the loss's scale.
  double grad_scale = 1;
  /// Learning rate of the step; a group of parameters has a factor of its own.
  double lr = 0;
  /// What the gradients of this step were multiplied with at the loss, a power of two.
  double used_loss_scale = 1;

  // These a step finds here.
  /// Steps that applied so far, with this one: Adam's t.
  double updates = 0;
  /// What gradients are multiplied with at the loss until the next decision.
  double loss_scale = 1;
  /// Steps since loss_scale last changed whose gradients were finite; a loss that is not leaves it.
  double good_steps = 0;

  double bias_correction1 = 1;       // 1 - beta1^updates
  double sqrt_bias_correction2 = 1;  // sqrt(1 - beta2^updates)

  /// As loss_sum, of what CrossEntropy adds by its z_loss_coef.
  double z_loss_sum = 0;

  bool applies() const { return apply != 0; }
  /// The step did not apply because its gradients were too large for their scale, which has shrunk.
  bool overflowed() const { return !applies() && loss_scale < used_loss_scale; }
  /// All numbers are; a step that did not apply then had a loss above its limit.
  bool is_finite() const {
    return loss_sum - loss_sum == 0 && z_loss_sum - z_loss_sum == 0 && grad_norm - grad_norm == 0;
  }
};
static_assert(sizeof(UpdateDecision) == UpdateDecision::kScalars * sizeof(double));

/// For a kernel's check().
inline void check_decision(const Operands& operands, const View& decision) {
  operands.dense("decision", decision, UpdateDecision::kScalars, {DType::f64});
}

/// How the scale of a loss follows the gradients ("Mixed Precision Training", arXiv 1710.03740;
/// names and defaults are those of PyTorch's GradScaler, which has no bounds but those of FP32).
struct LossScaleRule {
  static constexpr double kLeast = 1, kMost = 0x1p32;
  /// Steps in a row that apply before the scale grows; 0: it never changes.
  double growth_interval = 0;
  /// What it is multiplied with then (above 1), and by an overflow (between 0 and 1), within
  /// kLeast and kMost. A power of two times a power of two is one, and changes no digit.
  double growth_factor = 2, backoff_factor = 0.5;

  /// After a step whose loss was finite. A loss that is not says nothing about the scale, which
  /// takes effect behind it.
  constexpr void follow(bool finite_gradients, UpdateDecision& to) const {
    if (growth_interval == 0) return;
    if (!finite_gradients) {
      to.good_steps = 0;
      to.loss_scale *= backoff_factor;
      if (to.loss_scale < kLeast) to.loss_scale = kLeast;
      return;
    }
    to.good_steps += 1;
    if (to.good_steps < growth_interval) return;
    to.good_steps = 0;
    to.loss_scale *= growth_factor;
    if (to.loss_scale > kMost) to.loss_scale = kMost;
  }
};

}  // namespace llmtrain::kernels
