#pragma once
/// The scalars of an optimizer update, formed in double and rounded once to the type of the update,
/// so that every implementation starts from the same bits. Constexpr because device code forms them
/// too.

#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

template <class T>
struct AdamScalars {
  T grad_scale, kept_before, kept_after, weight_decay, beta1, beta2, one_minus_beta1,
      one_minus_beta2, step_size, sqrt_bias_correction2, eps;
  bool in_gradient;      // where the decay goes
  std::uint64_t update;  // its number, by which roundings are drawn

  /// For a parameter with these settings of its own.
  constexpr AdamScalars(const AdamUpdate& u, double lr_scale, double decay_of_weights,
                        const UpdateDecision& d)
      : grad_scale(static_cast<T>(d.grad_scale)),
        kept_before(kept(u.decay == WeightDecay::before_step, d.lr * lr_scale * decay_of_weights)),
        kept_after(kept(u.decay == WeightDecay::after_step, d.lr * lr_scale * decay_of_weights)),
        weight_decay(static_cast<T>(decay_of_weights)),
        beta1(static_cast<T>(u.beta1)),
        beta2(static_cast<T>(u.beta2)),
        one_minus_beta1(static_cast<T>(1 - u.beta1)),
        one_minus_beta2(static_cast<T>(1 - u.beta2)),
        step_size(static_cast<T>(d.lr * lr_scale / d.bias_correction1)),
        sqrt_bias_correction2(static_cast<T>(d.sqrt_bias_correction2)),
        eps(static_cast<T>(u.eps)),
        in_gradient(u.decay == WeightDecay::in_gradient),
        update(static_cast<std::uint64_t>(d.updates)) {}

 private:
  static constexpr T kept(bool decays, double part) {
    return static_cast<T>(decays ? 1 - part : 1);
  }
};

template <class T>
struct StepUpdateScalars {
  T kept_before, step_size, kept_after;
  std::uint64_t update;

  constexpr StepUpdateScalars(const StepUpdate& u, const UpdateDecision& d)
      : kept_before(static_cast<T>(u.decay_last ? 1 : kept(u, d))),
        step_size(static_cast<T>(u.factor * (d.lr * u.lr_scale))),
        kept_after(static_cast<T>(u.decay_last ? kept(u, d) : 1)),
        update(static_cast<std::uint64_t>(d.updates)) {}

  constexpr T apply(T p, T direction) const {
    return (kept_before * p + step_size * direction) * kept_after;
  }

 private:
  static constexpr double kept(const StepUpdate& u, const UpdateDecision& d) {
    return 1 - d.lr * u.lr_scale * u.weight_decay;
  }
};

}  // namespace llmtrain::kernels
