#pragma once
/// The scalars of an optimizer update, formed in double and rounded once to the type of the update,
/// so that every implementation starts from the same bits.

#include <cmath>

#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

template <class T>
struct AdamScalars {
  T grad_scale, decay, weight_decay, beta1, beta2, one_minus_beta1, one_minus_beta2, step_size,
      sqrt_bias_correction2, eps;

  explicit AdamScalars(const AdamUpdate& u)
      : grad_scale(static_cast<T>(u.to.grad_scale)),
        decay(static_cast<T>(1 - u.lr * u.weight_decay)),
        weight_decay(static_cast<T>(u.weight_decay)),
        beta1(static_cast<T>(u.beta1)),
        beta2(static_cast<T>(u.beta2)),
        one_minus_beta1(static_cast<T>(1 - u.beta1)),
        one_minus_beta2(static_cast<T>(1 - u.beta2)),
        step_size(static_cast<T>(u.lr / (1 - std::pow(u.beta1, static_cast<double>(u.step))))),
        sqrt_bias_correction2(
            static_cast<T>(std::sqrt(1 - std::pow(u.beta2, static_cast<double>(u.step))))),
        eps(static_cast<T>(u.eps)) {}
};

template <class T>
struct SgdScalars {
  T grad_scale, weight_decay, momentum, one_minus_dampening, lr;

  explicit SgdScalars(const SgdUpdate& u)
      : grad_scale(static_cast<T>(u.to.grad_scale)),
        weight_decay(static_cast<T>(u.weight_decay)),
        momentum(static_cast<T>(u.momentum)),
        one_minus_dampening(static_cast<T>(1 - u.dampening)),
        lr(static_cast<T>(u.lr)) {}
};

}  // namespace llmtrain::kernels
