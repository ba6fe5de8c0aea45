// RMSprop (Tieleman and Hinton, 2012), centered as in arXiv 1308.0850, in the form and with the
// defaults of torch.optim.RMSprop.
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct RmspropOptions : UpdateOptions {
  RmspropOptions() : UpdateOptions(1e-2) {}

  recipe::Key<double> alpha{this, "alpha", 0.99, "decay of the mean of the squared gradient",
                            recipe::at_least(0) & recipe::below(1)};
  recipe::Key<double> eps{this, "eps", 1e-8, "added to the root", recipe::above(0)};
  recipe::Key<double> momentum{this, "momentum", 0.0, "decay of the sum of steps; 0: none is kept",
                               recipe::at_least(0) & recipe::below(1)};
  recipe::Key<bool> centered{this, "centered", false,
                             "the root is that of the gradient's variance, not of its square"};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "weight decay, added to the gradient",
                                   recipe::at_least(0)};
};

template <bool centered, bool has_momentum>
kernels::UpdateRule rule_with(const RmspropOptions& options) {
  return kernels::rules::Rmsprop<centered, has_momentum>{
      .alpha = options.alpha(), .eps = options.eps(), .momentum = options.momentum()};
}

kernels::UpdateRule rule_of(const RmspropOptions& options) {
  const bool has_momentum = options.momentum() != 0;
  if (options.centered()) {
    return has_momentum ? rule_with<true, true>(options) : rule_with<true, false>(options);
  }
  return has_momentum ? rule_with<false, true>(options) : rule_with<false, false>(options);
}

}  // namespace

OptimizerRow rmsprop() {
  return {.name = "rmsprop",
          .doc = "steps by the root of the mean square, optionally of the variance, and momentum",
          .options = &recipe::section_of<RmspropOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            const auto& options = choice.as<RmspropOptions>();
            return std::make_unique<RuleOptimizer>(RuleOptimizer::Settings{
                .rule = rule_of(options), .weight_decay = options.weight_decay()});
          },
          .no_bf16_states = {}};
}

}  // namespace llmtrain::optim
