#pragma once
/// Whether decoupled weight decay comes before the step or after it.

#include <optional>

#include "kernels/update_rules.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::optim {

/// The recipe key `decay_order` of an optimizer whose weight decay is decoupled from its gradient.
struct DecayOrderKey : recipe::Key<kernels::WeightDecay> {
  explicit DecayOrderKey(recipe::Section* section,
                         kernels::WeightDecay of_authors = kernels::WeightDecay::before_step);
};

/// The same of an optimizer whose authors have one order for matrices and another for all else.
struct MixedDecayOrderKey : recipe::Key<std::optional<kernels::WeightDecay>> {
  explicit MixedDecayOrderKey(recipe::Section* section);
};

}  // namespace llmtrain::optim
