// Stochastic gradient descent without state.
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {

struct SgdOptions : recipe::Section {
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "weight decay, added to the gradient",
                                   recipe::at_least(0)};
};

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options) : Optimizer(options.weight_decay()) {}

  std::vector<StateSpec> states(const Parameter&) const override { return {}; }
  void update(const kernels::KernelCtx& ctx, const View& decision) const override {
    for (const OptimizedParameter& p : parameters()) {
      launch(ctx, kernels::SgdUpdate{.to = update_operands(*p.parameter),
                                     .decision = decision,
                                     .momentum_buffer = {},
                                     .lr_scale = p.lr_scale,
                                     .weight_decay = p.weight_decay});
    }
  }
};

}  // namespace

OptimizerRow sgd() {
  return {.name = "sgd",
          .doc = "plain gradient descent, no state",
          .options = &recipe::section_of<SgdOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Sgd>(choice.as<SgdOptions>());
          }};
}

}  // namespace llmtrain::optim
