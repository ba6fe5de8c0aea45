// AMSGrad (arXiv 1904.09237), in the form and with the defaults of torch.optim.Adam(amsgrad=True).
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/decay_order.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"

namespace llmtrain::optim {

namespace {

struct AmsgradOptions : AdamOptions {
  AmsgradOptions() : AdamOptions(AdamDefaults{}) {}

  recipe::Key<bool> decoupled{this, "decoupled", false,
                              "weight decay shrinks the parameter, as AdamW's does"};
  DecayOrderKey decay_order{this};

  void validate(recipe::Issues& issues) const override {
    if (decoupled() || decay_order() == kernels::WeightDecay::before_step) return;
    issues.add(decay_order, "weight decay has no place of its own in the gradient",
               "set optimizer.decoupled to true");
  }
};

}  // namespace

OptimizerRow amsgrad() {
  return {
      .name = "amsgrad",
      .doc = "Adam by the largest second moment so far",
      .options = &recipe::section_of<AmsgradOptions>,
      .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
        const auto& options = choice.as<AmsgradOptions>();
        const double beta1 = options.betas()[0], beta2 = options.betas()[1];
        const kernels::WeightDecay order = options.decay_order();
        return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
            .rule = kernels::rules::Amsgrad{{.beta1 = beta1, .beta2 = beta2, .eps = options.eps()}},
            .weight_decay = options.weight_decay(),
            .decay = options.decoupled() ? order : kernels::WeightDecay::in_gradient,
            .corrected = {beta1, beta2}});
      },
      .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
