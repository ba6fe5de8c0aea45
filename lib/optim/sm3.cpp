// SM3-II (arXiv 1901.11150), in the form of its authors' sm3.py: Adagrad whose sums of squares are
// bounded by one value for each row and one for each column. Each expert is a matrix of its own.
#include "kernels/elementwise.hpp"
#include "lib/optim/decay_order.hpp"
#include "lib/optim/factored.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

struct Sm3Options : UpdateOptions {
  Sm3Options() : UpdateOptions(1e-3) {}

  recipe::Key<double> momentum{this, "momentum", 0.9,
                               "decay of the mean of steps; 0 = none, and no memory for it",
                               recipe::at_least(0) & recipe::below(1)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "decoupled weight decay",
                                   recipe::at_least(0)};
  DecayOrderKey decay_order{this};
};

class Sm3 final : public MatrixOptimizer {
 public:
  explicit Sm3(const Sm3Options& options)
      : MatrixOptimizer(options.weight_decay()),
        momentum_(options.momentum()),
        decay_(options.decay_order()) {}

  std::vector<StateSpec> states(const Parameter& parameter) const override {
    std::vector<StateSpec> specs = factor_states(parameter, "row", "column");
    if (momentum_ > 0) specs.push_back({"m", parameter.master_dtype()});
    return specs;
  }
  std::int64_t indivisible(const Parameter& parameter) const override {
    return parameter.global_shape().rank() == 1 ? 1 : MatrixOptimizer::indivisible(parameter);
  }

 private:
  void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                       const View& decision) const override {
    const Parameter& parameter = *p.parameter;
    const std::int64_t own = parameter.own_place().own.count;
    if (own == 0) return;
    const bool is_matrix = parameter.global_shape().rank() > 1;
    const std::optional<PartSums> parts =
        is_matrix ? std::optional<PartSums>(std::in_place, parameter, mesh()) : std::nullopt;
    const kernels::Matrices here =
        is_matrix ? parts->here() : kernels::Matrices{.count = 1, .rows = 1, .columns = own};
    const Factors bounds = factors_at(p, 0);
    const Tensor u = step_of(ctx, parameter);
    launch(ctx, kernels::CoverScale{.g = p.whole_gradient(),
                                    .rows = bounds.rows,
                                    .columns = bounds.columns,
                                    .shape = here,
                                    .decision = decision,
                                    .u = u});
    advance(ctx, p.whole_gradient(), bounds, here, parts, decision);
    launch(ctx,
           kernels::MatrixStepUpdate{.to = update_operands(p),
                                     .u = u,
                                     .m = momentum_ > 0 ? p.states.back().view() : View{},
                                     .decision = decision,
                                     .matrices = here.count,
                                     .lr_scale = p.lr_scale,
                                     .weight_decay = p.weight_decay,
                                     .beta1 = momentum_,
                                     .rate_in_moment = false,
                                     .decay_last = decay_ == kernels::WeightDecay::after_step});
  }

  /// The bounds with this gradient.
  void advance(const kernels::KernelCtx& ctx, const Tensor& gradient, const Factors& bounds,
               const kernels::Matrices& here, const std::optional<PartSums>& parts,
               const View& decision) const {
    const auto next_of = [&](const Tensor& bound) {
      if (!bound.defined()) return Tensor();
      return ctx.device->allocate({bound.numel()}, bound.dtype(), Category::workspace,
                                  "sm3.bounds");
    };
    const Tensor rows = next_of(bounds.rows), columns = next_of(bounds.columns);
    launch(ctx, kernels::CoverMaxima{.g = gradient,
                                     .rows = bounds.rows,
                                     .columns = bounds.columns,
                                     .shape = here,
                                     .decision = decision,
                                     .new_rows = rows,
                                     .new_columns = columns});
    if (parts) {
      parts->over_columns(ctx, rows, ReduceOp::max);
      parts->over_rows(ctx, columns, ReduceOp::max);
      copy_bounds(ctx, rows, bounds.rows);
    }
    copy_bounds(ctx, columns, bounds.columns);
  }
  static void copy_bounds(const kernels::KernelCtx& ctx, const Tensor& from, const Tensor& to) {
    launch(ctx, kernels::ScaleCast{.x = from, .y = to.reshape({to.numel()})});
  }

  double momentum_;
  kernels::WeightDecay decay_;
};

}  // namespace

OptimizerRow sm3() {
  return {.name = "sm3",
          .doc = "Adagrad with one sum of squares for each row and each column",
          .options = &recipe::section_of<Sm3Options>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Sm3>(choice.as<Sm3Options>());
          },
          .no_bf16_states = "keeps states of rows and columns, and has kernels for states of FP32"};
}

}  // namespace llmtrain::optim
