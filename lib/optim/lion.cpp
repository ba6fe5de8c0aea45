// Lion (arXiv 2302.06675), in the form and with the defaults of its authors' lion_pytorch.py.
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"

namespace llmtrain::optim {

namespace {

struct LionOptions : recipe::Section {
  recipe::Key<std::vector<double>> betas{
      this,
      "betas",
      {0.9, 0.99},
      "how much of the mean gradient is in the step's sign, and the mean's decay",
      recipe::at_least(0) & recipe::below(1) & recipe::length(2)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "decoupled weight decay",
                                   recipe::at_least(0)};
  DecayOrderKey decay_order{this};
};

}  // namespace

OptimizerRow lion() {
  return {
      .name = "lion",
      .doc = "steps of one size by the sign of an averaged gradient",
      .options = &recipe::section_of<LionOptions>,
      .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
        const auto& options = choice.as<LionOptions>();
        return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
            .rule = kernels::rules::Lion{.beta1 = options.betas()[0], .beta2 = options.betas()[1]},
            .weight_decay = options.weight_decay(),
            .decay = options.decay_order()});
      }};
}

}  // namespace llmtrain::optim
