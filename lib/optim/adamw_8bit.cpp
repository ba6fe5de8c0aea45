// AdamW with moments of 8 bits (arXiv 2110.02861), as bitsandbytes' AdamW8bit has it in PyTorch.
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/eight_bit.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {

struct AdamW8bitOptions : DecoupledAdamOptions {
  AdamW8bitOptions() : DecoupledAdamOptions({.weight_decay = 0.1, .beta2 = 0.95}) {}
  MinSizeKey min_8bit_size{this};
};

}  // namespace

OptimizerRow adamw_8bit() {
  return {.name = "adamw_8bit",
          .doc = "AdamW with moments of 8 bits in blocks",
          .options = &recipe::section_of<AdamW8bitOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            const auto& options = choice.as<AdamW8bitOptions>();
            return std::make_unique<EightBitOptimizer>(EightBitOptimizer::Settings{
                .rule = kernels::rules::Adam{.beta1 = options.betas()[0],
                                             .beta2 = options.betas()[1],
                                             .eps = options.eps()},
                .weight_decay = options.weight_decay(),
                .decay = options.decay_order(),
                .min_size = options.min_8bit_size(),
                .others = std::make_unique<AdamMoments>(options, options.decay_order())});
          },
          .no_bf16_states = "keeps states of 8 bits"};
}

}  // namespace llmtrain::optim
