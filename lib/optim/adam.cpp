// Adam (arXiv 1412.6980): the decay is an L2 term of the gradient.
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {
struct PlainAdamOptions : AdamOptions {
  PlainAdamOptions() : AdamOptions(AdamDefaults{.beta2 = 0.95}) {}
};
}  // namespace

OptimizerRow adam() {
  return {.name = "adam",
          .doc = "Adam; weight decay is added to the gradient",
          .options = &recipe::section_of<PlainAdamOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AdamMoments>(choice.as<PlainAdamOptions>(),
                                                 kernels::WeightDecay::in_gradient);
          },
          .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
