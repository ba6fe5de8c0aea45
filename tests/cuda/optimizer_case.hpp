#pragma once
/// What tests of updates on the device share.

#include "kernels/optimizer.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/support/lists_of_one.hpp"

namespace llmtrain::kernels::gpu_trial {

inline constexpr DType kMasters[] = {DType::f64, DType::f32};

/// An update number `t` at lr 1 with gradients times `grad_scale`, for Adam's default betas.
inline Tensor decision_of(Machine& m, double grad_scale, int t, bool applies = true) {
  return m.of({0, 1, applies ? 1.0 : 0.0, grad_scale, 1, 1, double(t), 1, 0, 1 - std::pow(0.9, t),
               std::sqrt(1 - std::pow(0.999, t))},
              {UpdateDecision::kScalars}, DType::f64);
}

}  // namespace llmtrain::kernels::gpu_trial
