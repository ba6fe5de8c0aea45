#pragma once
/// What trials of optimizer kernels share.

#include "tests/support/lists_of_one.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels::trial {

inline constexpr std::int64_t kSizes[] = {0, 1, 15, 1000, 1024, 1025, 100003};

inline const Limits kSameBits = [] {
  Limits limits;
  limits.reference = 200;  // v is small beside its terms' rounding where gradients are
  limits.same_bits_as_reference = true;
  return limits;
}();

/// An update number `t` at lr 1 with gradients times `grad_scale`, for Adam with these betas.
inline Tensor decision_of(Machine& machine, double grad_scale, int t = 1, double beta1 = 0,
                          double beta2 = 0) {
  const double correction2 = std::sqrt(1 - std::pow(beta2, t));
  return machine.of(
      {0, 1, 1, grad_scale, 1, 1, double(t), 1, 0, 1 - std::pow(beta1, t), correction2},
      {UpdateDecision::kScalars}, DType::f64);
}

}  // namespace llmtrain::kernels::trial
