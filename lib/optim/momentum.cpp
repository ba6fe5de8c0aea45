// Gradient descent with (Nesterov) momentum in PyTorch's form: the buffer starts as the first
// gradient.
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {

struct MomentumOptions : recipe::Section {
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

class Momentum final : public Optimizer {
 public:
  explicit Momentum(const MomentumOptions& options)
      : Optimizer(options.weight_decay()),
        momentum_(options.momentum()),
        dampening_(options.dampening()),
        nesterov_(options.nesterov()) {}

  std::vector<StateSpec> states(const Parameter& parameter) const override {
    return {{"momentum", parameter.master_dtype()}};
  }
  void update(const kernels::KernelCtx& ctx, const View& decision) const override {
    for (const OptimizedParameter& p : parameters()) {
      launch(ctx, kernels::SgdUpdate{.to = update_operands(*p.parameter),
                                     .decision = decision,
                                     .momentum_buffer = p.states[0],
                                     .lr_scale = p.lr_scale,
                                     .momentum = momentum_,
                                     .dampening = dampening_,
                                     .weight_decay = p.weight_decay,
                                     .nesterov = nesterov_});
    }
  }

 private:
  double momentum_, dampening_;
  bool nesterov_;
};

}  // namespace

OptimizerRow momentum() {
  return {.name = "momentum",
          .doc = "gradient descent with momentum, optionally Nesterov's",
          .options = &recipe::section_of<MomentumOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Momentum>(choice.as<MomentumOptions>());
          }};
}

}  // namespace llmtrain::optim
