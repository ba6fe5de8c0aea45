// CAME (arXiv 2307.02047), in the form and with the defaults of its authors' CAME.py: Adafactor's
// factored moments, a mean of the steps, and less of it where steps differ from that mean.
#include "lib/optim/decay_order.hpp"
#include "lib/optim/factored.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct CameOptions : UpdateOptions {
  CameOptions() : UpdateOptions(2e-4) {}

  recipe::Key<std::vector<double>> betas{
      this,
      "betas",
      {0.9, 0.999, 0.9999},
      "decay of the mean of steps, of the gradient's square, and of the square of what a step "
      "differs from the mean",
      recipe::at_least(0) & recipe::below(1) & recipe::length(3)};
  recipe::Key<std::vector<double>> eps{this,
                                       "eps",
                                       {1e-30, 1e-16},
                                       "added to squares of gradients, and of those differences",
                                       recipe::above(0) & recipe::length(2)};
  recipe::Key<double> clip_threshold{
      this, "clip_threshold", 1.0,
      "largest root of the mean square of a parameter's step before the rate", recipe::above(0)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "decoupled weight decay",
                                   recipe::at_least(0)};
  DecayOrderKey decay_order{this};
};

class Came final : public MatrixOptimizer {
 public:
  explicit Came(const CameOptions& options)
      : MatrixOptimizer(options.weight_decay()),
        betas_(options.betas()),
        eps_(options.eps()),
        clip_threshold_(options.clip_threshold()),
        decay_(options.decay_order()) {}

  /// Of a matrix m, row, column, residual_row, residual_column; of a vector m, column.
  std::vector<StateSpec> states(const Parameter& parameter) const override {
    std::vector<StateSpec> specs{{"m", parameter.master_dtype()}};
    const auto add = [&](std::string_view row, std::string_view column) {
      for (const StateSpec& spec : factor_states(parameter, row, column)) specs.push_back(spec);
    };
    add("row", "column");
    if (parameter.global_shape().rank() > 1) add("residual_row", "residual_column");
    return specs;
  }

 private:
  void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                       const View& decision) const override {
    const Parameter& parameter = *p.parameter;
    const PartSums parts(parameter, mesh());
    if (parts.here().count == 0) return;
    const Tensor& m = p.states[0];
    const Factors moment = factors_at(p, 1);
    kernels::BlockMoments advance;
    advance.decision = decision;
    advance.beta2 = betas_[1];
    advance.eps = eps_[0];
    moment.advance(ctx, parts, p.whole_gradient(), advance);
    const Tensor u = step_of(ctx, parameter);
    moment.scale(ctx, parts, p.whole_gradient(), true, decision, u);

    const Tensor of_steps = squares_of(ctx, parts, u);
    launch(ctx, kernels::CameMoment{.u = u,
                                    .m = m,
                                    .clip = {.squares = of_steps,
                                             .numel = parts.all_rows() * parts.all_columns(),
                                             .threshold = clip_threshold_},
                                    .decision = decision,
                                    .matrices = parts.here().count,
                                    .beta1 = betas_[0]});
    const bool is_matrix = parameter.global_shape().rank() > 1;
    if (is_matrix) {  // of a vector the mean is the step
      const Factors residual = factors_at(p, 3);
      advance.beta2 = betas_[2];
      advance.eps = eps_[1];
      advance.of_gradient = false;
      residual.advance(ctx, parts, u, advance);
      residual.scale(ctx, parts, m, false, decision, u);
    }
    launch(ctx,
           kernels::MatrixStepUpdate{.to = update_operands(p),
                                     .u = is_matrix ? u : m,
                                     .decision = decision,
                                     .matrices = parts.here().count,
                                     .lr_scale = p.lr_scale,
                                     .weight_decay = p.weight_decay,
                                     .decay_last = decay_ == kernels::WeightDecay::after_step});
  }

  std::vector<double> betas_, eps_;
  double clip_threshold_;
  kernels::WeightDecay decay_;
};

}  // namespace

OptimizerRow came() {
  return {.name = "came",
          .doc = "Adafactor's moments, with smaller steps where they differ from their mean",
          .options = &recipe::section_of<CameOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Came>(choice.as<CameOptions>());
          },
          .no_bf16_states = "keeps states of rows and columns, and has kernels for states of FP32"};
}

}  // namespace llmtrain::optim
