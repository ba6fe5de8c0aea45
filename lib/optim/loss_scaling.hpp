#pragma once
/// The scale of the loss in FP16, whose gradients would otherwise be too small for the type.

#include "kernels/update_decision.hpp"

namespace llmtrain::optim {

struct LossScaling {
  /// Of the first step; a power of two, so that it changes no digit of a gradient.
  double initial = 0x1p16;
  /// Steps without overflow after which it doubles; 0: it never changes.
  double growth_interval = 2000;

  bool dynamic() const { return growth_interval > 0; }
};

}  // namespace llmtrain::optim
