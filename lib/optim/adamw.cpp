// AdamW (arXiv 1711.05101): the decay shrinks the parameter and stays out of the moments.
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {
struct AdamWOptions : DecoupledAdamOptions {
  AdamWOptions() : DecoupledAdamOptions({.weight_decay = 0.1, .beta2 = 0.95}) {}
};
}  // namespace

OptimizerRow adamw() {
  return {.name = "adamw",
          .doc = "Adam with decoupled weight decay",
          .options = &recipe::section_of<AdamWOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            const auto& options = choice.as<AdamWOptions>();
            return std::make_unique<AdamMoments>(options, options.decay_order());
          },
          .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
