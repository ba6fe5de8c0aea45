// Gradient descent with (Nesterov) momentum in PyTorch's form: the buffer starts as the first
// gradient.
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct MomentumOptions : UpdateOptions {
  MomentumOptions() : UpdateOptions(1e-3) {}

  recipe::Key<double> momentum{this, "momentum", 0.9, "decay of the sum of gradients",
                               recipe::at_least(0) & recipe::below(1)};
  recipe::Key<double> dampening{this, "dampening", 0.0, "a new gradient counts 1 - dampening",
                                recipe::between(0, 1)};
  recipe::Key<bool> nesterov{this, "nesterov", false, "look ahead along the momentum"};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "weight decay, added to the gradient",
                                   recipe::at_least(0)};

  void validate(recipe::Issues& issues) const override {
    if (!nesterov()) return;
    if (momentum() == 0) issues.add(momentum, "nesterov needs a momentum", "set it above 0");
    if (dampening() != 0) issues.add(dampening, "nesterov allows no dampening", "set it to 0");
  }
};

}  // namespace

OptimizerRow momentum() {
  return {.name = "momentum",
          .doc = "gradient descent with momentum, optionally Nesterov's",
          .options = &recipe::section_of<MomentumOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            const auto& options = choice.as<MomentumOptions>();
            return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
                .rule = kernels::rules::Momentum{.momentum = options.momentum(),
                                                 .dampening = options.dampening(),
                                                 .nesterov = options.nesterov()},
                .weight_decay = options.weight_decay()});
          },
          .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
