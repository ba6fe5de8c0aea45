// Muon (K. Jordan, 2024): the averaged gradient of a matrix, made orthogonal by a Newton-Schulz
// iteration, is its step. Embeddings, the head, norms and biases follow AdamW. Averages and factors
// are those of torch.optim.Muon, but for which factor is the default.
#include <cmath>
#include <utility>

#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/matrices_and_others.hpp"
#include "lib/optim/matrix_parts.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {

using kernels::Matmul;
using kernels::ScaleCast;
using kernels::ScaleUpdate;

enum class LrAdjustment : std::uint8_t { match_rms_adamw, original };

struct MuonOptions : DecoupledAdamOptions {
  MuonOptions() : DecoupledAdamOptions({.weight_decay = 0.1, .beta2 = 0.95}) {}

  recipe::Key<double> momentum{this, "momentum", 0.95, "decay of the mean gradient of a matrix",
                               recipe::at_least(0) & recipe::below(1)};
  recipe::Key<bool> nesterov{this, "nesterov", true, "look ahead along the momentum"};
  recipe::Key<recipe::Count> ns_steps{this, "ns_steps", 5, "Newton-Schulz iterations",
                                      recipe::between(1, 100)};
  recipe::Key<LrAdjustment> lr_adjustment{
      this, "lr_adjustment", LrAdjustment::match_rms_adamw,
      "factor on the step of an [out, in] matrix: 0.2 sqrt(max(out, in)), as large as AdamW's at "
      "the same lr, or sqrt(max(1, out / in))",
      recipe::one_of<LrAdjustment>({{"match_rms_adamw", LrAdjustment::match_rms_adamw},
                                    {"original", LrAdjustment::original}})};
};

// Coefficients of the quintic iteration, which takes singular values in (0, 1] near 1.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

/// Of the iteration and of the step that it gives: the type of the products, but bf16, which the
/// authors take, where that is fp16. Every device that multiplies fp16 multiplies bf16.
DType iteration_dtype(const Parameter& parameter) {
  const DType dtype = parameter.compute_dtype();
  return dtype == DType::f16 ? DType::bf16 : dtype;
}

/// x [m, n] with ||x||_F <= 1 -> nearly U V^T of its singular value decomposition: `steps` times
/// x <- a x + (b G + c G^2) x with G = x x^T, or the same from the right when n < m.
Tensor orthogonalized(const kernels::KernelCtx& ctx, Tensor x, std::uint64_t steps) {
  const bool wide = x.view().rows() <= x.view().cols();
  const std::int64_t side = std::min(x.view().rows(), x.view().cols());
  const auto scratch = [&](const Shape& shape, std::string_view tag) {
    return ctx.device->allocate(shape, x.dtype(), Category::workspace, tag);
  };
  const Tensor gram = scratch({side, side}, "muon.gram");
  const Tensor scaled = scratch({side, side}, "muon.scaled");
  const Tensor factor = scratch({side, side}, "muon.factor");
  Tensor next = scratch(x.shape(), "muon.next");
  for (std::uint64_t i = 0; i < steps; ++i) {
    launch(
        ctx,
        Matmul{.a = x, .b = x, .c = gram, .bias = {}, .transpose_a = !wide, .transpose_b = wide});
    launch(ctx, ScaleCast{.x = gram, .y = scaled, .scale = kC});
    launch(ctx, ScaleCast{.x = gram, .y = factor, .scale = kB});
    launch(ctx, Matmul{.a = scaled, .b = gram, .c = factor, .bias = {}, .accumulate = true});
    launch(ctx, ScaleCast{.x = x, .y = next, .scale = kA});
    launch(ctx, Matmul{.a = wide ? factor : x,
                       .b = wide ? x : factor,
                       .c = next,
                       .bias = {},
                       .accumulate = true});
    std::swap(x, next);
  }
  return x;
}

class Muon final : public MatricesAndOthers {
 public:
  explicit Muon(const MuonOptions& options)
      : MatricesAndOthers(std::make_unique<AdamMoments>(options, options.decay_order())),
        momentum_(options.momentum()),
        nesterov_(options.nesterov()),
        steps_(options.ns_steps()),
        adjustment_(options.lr_adjustment()),
        decay_(options.decay_order()) {}

 private:
  std::vector<StateSpec> matrix_states(const Parameter& parameter) const override {
    return {{"momentum", parameter.master_dtype()}};
  }

  void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                       const View& decision) const override {
    const Parameter& parameter = *p.parameter;
    const Shape& shape = parameter.box().shape;
    const MatrixParts parts(parameter, mesh());
    const Tensor ahead = look_ahead(ctx, p, p.states[0], decision);
    const DType dtype = iteration_dtype(parameter);
    const auto orthogonal = [&](const Tensor& part) {
      const Tensor x = unit_length(ctx, part, parts, dtype);
      return orthogonalized(ctx, parts.whole(ctx, x), steps_);
    };
    Tensor step;
    if (shape.rank() == 2 && !parts.are_several()) {
      step = orthogonal(ahead);
    } else {
      step = ctx.device->allocate(shape, dtype, Category::workspace, "muon.steps");
      // Experts have a matrix each.
      const std::int64_t rows = shape[shape.rank() - 2];
      for (std::int64_t at = 0; at < step.view().rows(); at += rows) {
        const Tensor whole = orthogonal(ahead.row_range(at, rows));
        launch(ctx, ScaleCast{.x = parts.own(whole.view()), .y = step.row_range(at, rows)});
      }
    }
    step_along(ctx, p, step, decision, -size_factor(parameter.global_shape()), decay_);
  }

  /// Advances the mean gradient; returns it, or what lies ahead of it. Where the decision does not
  /// apply, that is of no use and the mean stays.
  Tensor look_ahead(const kernels::KernelCtx& ctx, const OptimizedParameter& p, const Tensor& mean,
                    const View& decision) const {
    const auto add_fresh = [&](const Tensor& to, bool accumulate) {
      launch(ctx, ScaleUpdate{.x = p.whole_gradient(),
                              .y = to,
                              .decision = decision,
                              .scale = {.value = 1 - momentum_, .clipped = true},
                              .accumulate = accumulate});
    };
    launch(ctx,
           ScaleUpdate{.x = mean, .y = mean, .decision = decision, .scale = {.value = momentum_}});
    add_fresh(mean, true);
    Tensor ahead = mean;
    if (nesterov_) {
      ahead = ctx.device->allocate(mean.shape(), mean.dtype(), Category::workspace, "muon.ahead");
      add_fresh(ahead, false);
      launch(ctx, ScaleCast{.x = mean, .y = ahead, .scale = momentum_, .accumulate = true});
    }
    return ahead;
  }

  /// This rank's part of what Newton-Schulz starts from, in the dtype of the iteration.
  static Tensor unit_length(const kernels::KernelCtx& ctx, const Tensor& ahead,
                            const MatrixParts& parts, DType dtype) {
    const Tensor square = ctx.device->allocate({1}, DType::f64, Category::workspace, "muon.square");
    launch(ctx, kernels::SquaredNorm{
                    .gradients = std::span(&ahead.view(), 1), .table = {}, .out = square});
    parts.sum(ctx, square);
    Tensor x = ctx.device->allocate(ahead.shape(), dtype, Category::workspace, "muon.x");
    launch(ctx, kernels::Normalize{.x = ahead, .squared_norm = square, .y = x});
    return x;
  }

  double size_factor(const Shape& shape) const {
    const auto rows = static_cast<double>(shape[shape.rank() - 2]);
    const auto cols = static_cast<double>(shape[shape.rank() - 1]);
    return adjustment_ == LrAdjustment::original ? std::sqrt(std::max(1.0, rows / cols))
                                                 : 0.2 * std::sqrt(std::max(rows, cols));
  }

  double momentum_;
  bool nesterov_;
  std::uint64_t steps_;
  LrAdjustment adjustment_;
  kernels::WeightDecay decay_;
};

}  // namespace

OptimizerRow muon() {
  return {.name = "muon",
          .doc = "orthogonalized momentum for matrices, AdamW for all else",
          .options = &recipe::section_of<MuonOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Muon>(choice.as<MuonOptions>());
          },
          .no_bf16_states = "keeps the momentum of matrices by kernels for states of FP32"};
}

}  // namespace llmtrain::optim
