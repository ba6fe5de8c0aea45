// Gradient descent that looks ahead along its momentum (Nesterov, 1983), in the form of
// torch.optim.SGD(nesterov=True): the buffer starts as the first gradient.
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct NesterovOptions : UpdateOptions {
  NesterovOptions() : UpdateOptions(1e-3) {}

  recipe::Key<double> momentum{this, "momentum", 0.9, "decay of the sum of gradients",
                               recipe::above(0) & recipe::below(1)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "weight decay, added to the gradient",
                                   recipe::at_least(0)};
};

}  // namespace

OptimizerRow nesterov() {
  return {.name = "nesterov",
          .doc = "gradient descent with Nesterov's momentum",
          .options = &recipe::section_of<NesterovOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            const auto& options = choice.as<NesterovOptions>();
            return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
                .rule = kernels::rules::Momentum{.momentum = options.momentum(), .nesterov = true},
                .weight_decay = options.weight_decay()});
          },
          .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
