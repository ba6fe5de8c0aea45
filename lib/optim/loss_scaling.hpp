#pragma once
/// The scale of the loss in FP16, whose gradients would otherwise be too small for the type.

#include "kernels/update_decision.hpp"

namespace llmtrain::optim {

struct LossScaling {
  /// Of the first step; a power of two, so that it changes no digit of a gradient.
  double initial = 0x1p16;
  /// Steps without overflow after which it grows; 0: it never changes.
  double growth_interval = 2000;
  /// Powers of two, too: what it is multiplied with then, and by an overflow.
  double growth_factor = 2, backoff_factor = 0.5;

  bool dynamic() const { return growth_interval > 0; }
  kernels::LossScaleRule rule() const {
    return {.growth_interval = growth_interval,
            .growth_factor = growth_factor,
            .backoff_factor = backoff_factor};
  }
};

}  // namespace llmtrain::optim
