#include "lib/optim/decay_order.hpp"

namespace llmtrain::optim {

namespace {

recipe::Names<kernels::WeightDecay> orders() {
  return recipe::one_of<kernels::WeightDecay>(
      {{"before", kernels::WeightDecay::before_step}, {"after", kernels::WeightDecay::after_step}});
}

}  // namespace

DecayOrderKey::DecayOrderKey(recipe::Section* section, kernels::WeightDecay of_authors)
    : recipe::Key<kernels::WeightDecay>(
          section, "decay_order", of_authors,
          "whether decoupled weight decay comes before the step or after it", orders()) {}

MixedDecayOrderKey::MixedDecayOrderKey(recipe::Section* section)
    : recipe::Key<std::optional<kernels::WeightDecay>>(
          section, "decay_order", std::nullopt,
          "whether decoupled weight decay comes before the step or after it; null: of matrices of "
          "attention and MLP after it, of all else before it",
          orders()) {}

}  // namespace llmtrain::optim
