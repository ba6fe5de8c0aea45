// Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), in the form and with the defaults of
// torch.optim.Adagrad.
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct AdagradOptions : UpdateOptions {
  AdagradOptions() : UpdateOptions(1e-2) {}

  recipe::Key<double> lr_decay{this, "lr_decay", 0.0,
                               "update t has lr / (1 + (t - 1) lr_decay), besides the schedule",
                               recipe::at_least(0)};
  recipe::Key<double> initial_accumulator_value{this, "initial_accumulator_value", 0.0,
                                                "of the sum of squares before the first step",
                                                recipe::at_least(0)};
  recipe::Key<double> eps{this, "eps", 1e-10, "added to the root of the sum", recipe::above(0)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "weight decay, added to the gradient",
                                   recipe::at_least(0)};
};

}  // namespace

OptimizerRow adagrad() {
  return {
      .name = "adagrad",
      .doc = "steps shrink with the sum of all squared gradients",
      .options = &recipe::section_of<AdagradOptions>,
      .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
        const auto& options = choice.as<AdagradOptions>();
        return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
            .rule = kernels::rules::Adagrad{.lr_decay = options.lr_decay(), .eps = options.eps()},
            .weight_decay = options.weight_decay(),
            .initial_state = options.initial_accumulator_value()});
      },
      .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
