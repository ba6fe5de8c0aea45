// Lion (arXiv 2302.06675) with a moment of 8 bits (arXiv 2110.02861), as bitsandbytes' Lion8bit has
// it in PyTorch.
#include "lib/optim/eight_bit.hpp"
#include "lib/optim/lion_options.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {

struct Lion8bitOptions : LionOptions {
  MinSizeKey min_8bit_size{this};
};

}  // namespace

OptimizerRow lion_8bit() {
  return {.name = "lion_8bit",
          .doc = "Lion with a moment of 8 bits in blocks",
          .options = &recipe::section_of<Lion8bitOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            const auto& options = choice.as<Lion8bitOptions>();
            const kernels::rules::Lion rule{.beta1 = options.betas()[0],
                                            .beta2 = options.betas()[1]};
            return std::make_unique<EightBitOptimizer>(EightBitOptimizer::Settings{
                .rule = rule,
                .weight_decay = options.weight_decay(),
                .decay = options.decay_order(),
                .min_size = options.min_8bit_size(),
                .others = std::make_unique<RuleOptimizer>(
                    RuleOptimizer::Settings{.rule = rule,
                                            .weight_decay = options.weight_decay(),
                                            .decay = options.decay_order()})});
          },
          .no_bf16_states = "keeps states of 8 bits"};
}

}  // namespace llmtrain::optim
