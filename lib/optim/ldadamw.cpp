// LDAdam (arXiv 2410.16103), in the form and with the defaults of IST-DASLab/LDAdam
// ldadamw_torch/ldadamw.py and projector.py (proj_type std, proj_method power_iteration): Adam in a
// subspace of each matrix that follows the gradient in every update. That is for the matrices of
// attention and MLP; embeddings, the head, norms and biases follow AdamW. What is decided here:
// - The error that projections leave is a state, where the authors keep it in the gradient's own
//   memory. So whoever accumulates, clears or clips gradients knows nothing of it, and the norm
//   that clips is that of the gradient alone, where theirs has the error in it. The clipped
//   gradient and the error are added up at the update.
// - Signs of the subspace's vectors are a rule (kernels::Orthonormalize), the authors' those of
//   their library. No step depends on them: m turns its sign with a vector, v is carried by
//   squares.
// - The update's number, and so whether it is the first, comes from the decision. A step that does
//   not apply leaves the subspace, both moments and the error to the bit.
#include <cfloat>
#include <cmath>
#include <limits>

#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "kernels/projected.hpp"
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/subspace_optimizer.hpp"

namespace llmtrain::optim {

namespace {

using kernels::Matmul;
using kernels::ScaleCast;
using kernels::ScaleUpdate;

struct LdadamwOptions : DecoupledAdamOptions {
  LdadamwOptions() : DecoupledAdamOptions({.beta1 = 0.908, .beta2 = 0.99}) {}

  recipe::Key<recipe::Count> rank{this, "rank", 16,
                                  "dims of a matrix's subspace; of a smaller matrix all",
                                  recipe::at_least(1)};
  recipe::Key<double> rho{this, "rho", 0.908,
                          "share of the mean gradient so far in what the next subspace follows",
                          recipe::at_least(0) & recipe::below(1)};
  recipe::Key<bool> error_feedback{this, "error_feedback", true,
                                   "add to a gradient what projections left of those before it"};
};

/// Of a column of b^T (b P), with b of this shape, relative to its length: sums of so many terms.
double rounding_of(const View& b) {
  const double eps = b.dtype == DType::f64 ? DBL_EPSILON : FLT_EPSILON;
  return 4 * eps * std::sqrt(static_cast<double>(std::max(b.rows(), b.cols())));
}

class Ldadamw final : public SubspaceOptimizer {
 public:
  explicit Ldadamw(const LdadamwOptions& options)
      : SubspaceOptimizer(
            {.rank = static_cast<std::int64_t>(options.rank()), .decay = options.decay_order()},
            std::make_unique<AdamMoments>(options, options.decay_order())),
        rule_{.beta1 = options.betas()[0], .beta2 = options.betas()[1], .eps = options.eps()},
        rho_(options.rho()),
        has_error_(options.error_feedback()) {}

 private:
  /// The projector, m, v and the error.
  std::vector<StateSpec> matrix_states(const Parameter& parameter) const override {
    std::vector<StateSpec> states = SubspaceOptimizer::matrix_states(parameter);
    if (has_error_) states.push_back({"error", parameter.master_dtype()});
    return states;
  }

  void add_leftover(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                    const Tensor& gradient) const override {
    if (!has_error_) return;
    launch(ctx, ScaleCast{.x = p.states[3], .y = gradient, .accumulate = true});
  }

  void step_matrix(const kernels::KernelCtx& ctx, const WholeMatrix& matrix,
                   const View& decision) const override {
    const Subspace& of = matrix.of;
    const Tensor &g = matrix.g, &projector = matrix.states[0], &m = matrix.states[1],
                 &v = matrix.states[2];
    const auto inside = [&](std::string_view tag) { return scratch(ctx, of.inside, g, tag); };
    const Tensor mean = inside("ldadamw.mean"), variance = inside("ldadamw.variance");
    launch(ctx, kernels::UnbiasedMoments{.m = m,
                                         .v = v,
                                         .mean = mean,
                                         .variance = variance,
                                         .decision = decision,
                                         .beta1 = rule_.beta1,
                                         .beta2 = rule_.beta2});
    const Tensor next = next_projector(ctx, matrix, mean, decision);
    const Tensor step = inside("ldadamw.step"), carried = inside("ldadamw.carried m");
    of.project(ctx, g, next, step);
    // The vectors so far as the next ones see them. By their squares a variance is carried, as if
    // what belongs to different vectors were independent.
    const Tensor turn = scratch(ctx, {of.dims(), of.dims()}, g, "ldadamw.turn");
    of.project(ctx, projector, next, turn);
    of.take_back(ctx, m, turn, carried);
    launch(ctx, kernels::SquareElements{.x = turn, .y = turn});
    const Tensor carried_variance = mean;  // whose time is over
    of.take_back(ctx, variance, turn, carried_variance);
    if (has_error_) keep_error(ctx, matrix, next, step, carried, decision);
    launch(ctx, kernels::CarriedStep{.g = step,
                                     .carried = carried,
                                     .variance = carried_variance,
                                     .m = m,
                                     .v = v,
                                     .y = step,
                                     .decision = decision,
                                     .rule = rule_});
    of.take_back(ctx, step, next, g);
    launch(ctx, ScaleUpdate{.x = next, .y = projector, .decision = decision, .scale = {}});
  }

  /// Of the first update the singular vectors of g; then one step of the power iteration from the
  /// projector so far, with b = rho mean + (1 - rho) g. `mean` is used up.
  Tensor next_projector(const kernels::KernelCtx& ctx, const WholeMatrix& matrix,
                        const Tensor& mean, const View& decision) const {
    const Subspace& of = matrix.of;
    const Tensor &g = matrix.g, &projector = matrix.states[0];
    const Tensor next = scratch(ctx, of.projector, g, "ldadamw.next projector");
    launch(ctx, kernels::TopSingularVectors{.g = g,
                                            .vectors = next,
                                            .decision = decision,
                                            .gap = std::numeric_limits<std::int64_t>::max(),
                                            .left_of_square = true});
    const Tensor b = scratch(ctx, g.shape(), g, "ldadamw.b");
    launch(ctx, ScaleCast{.x = mean, .y = mean, .scale = rho_});
    launch(ctx, ScaleCast{.x = g, .y = b, .scale = 1 - rho_});
    of.take_back(ctx, mean, projector, b, true);
    const Tensor &seen = mean, iterated = scratch(ctx, of.projector, g, "ldadamw.iterated");
    of.project(ctx, b, projector, seen);
    launch(ctx, Matmul{.a = of.right ? seen : b,
                       .b = of.right ? b : seen,
                       .c = iterated,
                       .bias = {},
                       .transpose_a = of.right,
                       .transpose_b = !of.right});
    launch(ctx, kernels::Orthonormalize{.y = iterated,
                                        .q = next,
                                        .decision = decision,
                                        .of_rows = of.right,
                                        .rounding = rounding_of(b)});
    return next;
  }

  /// What the next subspace does not have of the gradient, and of the mean so far in the measure in
  /// which it would have gone on. g becomes that.
  void keep_error(const kernels::KernelCtx& ctx, const WholeMatrix& matrix, const Tensor& next,
                  const Tensor& seen, const Tensor& carried, const View& decision) const {
    const Tensor &g = matrix.g, &m = matrix.states[1];
    const double goes_on = rule_.beta1 / (1 - rule_.beta1);
    const Tensor x = scratch(ctx, matrix.of.inside, g, "ldadamw.error");
    launch(ctx, ScaleCast{.x = m, .y = x, .scale = goes_on});
    matrix.of.take_back(ctx, x, matrix.states[0], g, true);
    launch(ctx, ScaleCast{.x = seen, .y = x, .scale = -1});
    launch(ctx, ScaleCast{.x = carried, .y = x, .scale = -goes_on, .accumulate = true});
    matrix.of.take_back(ctx, x, next, g, true);
    launch(ctx, ScaleUpdate{.x = matrix.parts.own(g.view()),
                            .y = matrix.states[3],
                            .decision = decision,
                            .scale = {}});
  }

  static Tensor scratch(const kernels::KernelCtx& ctx, const Shape& shape, const Tensor& like,
                        std::string_view tag) {
    return ctx.device->allocate(shape, like.dtype(), Category::workspace, tag);
  }

  kernels::rules::Adam rule_;
  double rho_;
  bool has_error_;
};

}  // namespace

OptimizerRow ldadamw() {
  return {.name = "ldadamw",
          .doc = "Adam in a subspace of each matrix that follows its gradient; AdamW for all else",
          .options = &recipe::section_of<LdadamwOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Ldadamw>(choice.as<LdadamwOptions>());
          },
          .cpu_only = true,
          .no_bf16_states = "keeps states in subspaces, in FP32"};
}

}  // namespace llmtrain::optim
