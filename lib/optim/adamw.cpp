// AdamW (arXiv 1711.05101): the decay shrinks the parameter and stays out of the moments.
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {
struct AdamWOptions : AdamOptions {
  AdamWOptions() : AdamOptions(0.1) {}
};
}  // namespace

OptimizerRow adamw() {
  return {.name = "adamw",
          .doc = "Adam with decoupled weight decay",
          .options = &recipe::section_of<AdamWOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AdamMoments>(choice.as<AdamWOptions>(),
                                                 AdamMoments::Decay::decoupled);
          }};
}

}  // namespace llmtrain::optim
