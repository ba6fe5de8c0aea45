// Stochastic gradient descent without state.
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct SgdOptions : UpdateOptions {
  SgdOptions() : UpdateOptions(1e-3) {}

  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "weight decay, added to the gradient",
                                   recipe::at_least(0)};
};

}  // namespace

OptimizerRow sgd() {
  return {
      .name = "sgd",
      .doc = "plain gradient descent, no state",
      .options = &recipe::section_of<SgdOptions>,
      .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
        return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
            .rule = kernels::rules::Sgd{}, .weight_decay = choice.as<SgdOptions>().weight_decay()});
      },
      .no_bf16_states = "keeps no states"};
}

}  // namespace llmtrain::optim
