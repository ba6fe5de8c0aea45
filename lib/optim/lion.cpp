// Lion (arXiv 2302.06675), in the form and with the defaults of its authors' lion_pytorch.py.
#include "lib/optim/lion_options.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

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
      },
      .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
