#pragma once
/// What changes from step to step where it stands on the device: work that is recorded once and
/// repeated finds the step's own numbers there.

#include <cstdint>
#include <limits>

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

/// On the device these numbers lie side by side in an FP64 tensor [kScalars].
struct StepScalars {
  static constexpr std::int64_t kScalars = 4;
  /// A whole number from 1.
  double step = 1;
  /// Gradients are those of (sum of token losses) * grad_scale.
  double grad_scale = 1;
  /// Of parameters without a group.
  double lr = 0;
  /// A step whose loss, in nats over all its trained tokens, is above this does not apply.
  double loss_limit = std::numeric_limits<double>::infinity();
};
static_assert(sizeof(StepScalars) == StepScalars::kScalars * sizeof(double));

/// For kernels of the CPU: the step of `scalars`, or `otherwise` where they are absent.
inline std::uint64_t step_now(const View& scalars, std::uint64_t otherwise) {
  return scalars.defined() ? static_cast<std::uint64_t>(scalars.as<StepScalars>()->step)
                           : otherwise;
}

/// For a kernel's check(): absent, or of that form.
inline void check_step_scalars(const Operands& operands, const View& scalars) {
  if (scalars.defined()) {
    operands.dense("scalars", scalars, StepScalars::kScalars, {DType::f64});
  }
}

}  // namespace llmtrain::kernels
