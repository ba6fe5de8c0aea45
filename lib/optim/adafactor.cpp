// Adafactor (arXiv 1804.04235), in the form and with the defaults of its authors' tensor2tensor:
// the second moment of a matrix is that of its rows times that of its columns over their mean.
#include "lib/optim/decay_order.hpp"
#include "lib/optim/factored.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct AdafactorOptions : UpdateOptions {
  AdafactorOptions() : UpdateOptions(1e-2) {}

  recipe::Key<double> decay_rate{
      this, "decay_rate", 0.8,
      "of the second moment, which update t multiplies with 1 - t^-decay_rate",
      recipe::above(0) & recipe::at_most(1)};
  recipe::Key<std::optional<double>> clip_threshold{
      this, "clip_threshold", 1.0,
      "largest root of the mean square of a parameter's step before the rate; null = none",
      recipe::above(0)};
  recipe::Key<double> beta1{this, "beta1", 0.0,
                            "decay of the mean of steps; 0 = none, and no memory for it",
                            recipe::at_least(0) & recipe::below(1)};
  recipe::Key<bool> relative_step{this, "relative_step", true,
                                  "optimizer.lr is the most that update t takes: at most t^-0.5"};
  recipe::Key<bool> scale_parameter{
      this, "scale_parameter", true,
      "the rate is a share of each parameter's size, the root of its mean square"};
  recipe::Key<std::vector<double>> eps{
      this,
      "eps",
      {1e-30, 1e-3},
      "added to squares of gradients, and the least size of a parameter for scale_parameter",
      recipe::above(0) & recipe::length(2)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "decoupled weight decay",
                                   recipe::at_least(0)};
  DecayOrderKey decay_order{this};
};

class Adafactor final : public MatrixOptimizer {
 public:
  explicit Adafactor(const AdafactorOptions& options)
      : MatrixOptimizer(options.weight_decay()),
        decay_rate_(options.decay_rate()),
        beta1_(options.beta1()),
        clip_threshold_(options.clip_threshold()),
        relative_step_(options.relative_step()),
        scale_parameter_(options.scale_parameter()),
        eps_(options.eps()),
        decay_(options.decay_order()) {}

  std::vector<StateSpec> states(const Parameter& parameter) const override {
    std::vector<StateSpec> specs = factor_states(parameter, "row", "column");
    if (beta1_ > 0) specs.push_back({"m", parameter.master_dtype()});
    return specs;
  }

 private:
  void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                       const View& decision) const override {
    const Parameter& parameter = *p.parameter;
    const PartSums parts(parameter, mesh());
    if (parts.here().count == 0) return;
    const Factors factors = factors_at(p, 0);
    kernels::BlockMoments advance;
    advance.decision = decision;
    advance.decay_power = decay_rate_;
    advance.eps = eps_[0];
    factors.advance(ctx, parts, p.whole_gradient(), advance);
    const Tensor u = step_of(ctx, parameter);
    factors.scale(ctx, parts, p.whole_gradient(), true, decision, u);

    kernels::MatrixStepUpdate step{.to = update_operands(p),
                                   .u = u,
                                   .m = beta1_ > 0 ? p.states.back().view() : View{},
                                   .least_scale = eps_[1],
                                   .decision = decision,
                                   .matrices = parts.here().count,
                                   .lr_scale = p.lr_scale,
                                   .weight_decay = p.weight_decay,
                                   .beta1 = beta1_,
                                   .relative = relative_step_,
                                   .decay_last = decay_ == kernels::WeightDecay::after_step};
    step.clip.numel = parts.all_rows() * parts.all_columns();
    Tensor of_steps, of_values;
    if (clip_threshold_) {
      of_steps = squares_of(ctx, parts, u);
      step.clip.squares = of_steps;
      step.clip.threshold = *clip_threshold_;
    }
    if (scale_parameter_) {
      of_values = master_squares_of(ctx, parts, p);
      step.parameter_squares = of_values;
    }
    launch(ctx, step);
  }

  double decay_rate_, beta1_;
  std::optional<double> clip_threshold_;
  bool relative_step_, scale_parameter_;
  std::vector<double> eps_;
  kernels::WeightDecay decay_;
};

}  // namespace

OptimizerRow adafactor() {
  return {.name = "adafactor",
          .doc = "second moments of rows and columns, and rates relative to the weights",
          .options = &recipe::section_of<AdafactorOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Adafactor>(choice.as<AdafactorOptions>());
          },
          .no_bf16_states = "keeps states of rows and columns, and has kernels for states of FP32"};
}

}  // namespace llmtrain::optim
