// GaLore (arXiv 2403.03507), in the form and with the defaults of jiaweizzhao/GaLore
// galore_torch/adamw.py and galore_projector.py (proj_type std): the gradient of a matrix is
// projected on the subspace of its largest singular values, Adam runs there, and its step is taken
// back. As its authors have it, that is for the matrices of attention and MLP; embeddings, the
// head, norms and biases follow the same Adam as they are.
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"
#include "kernels/projected.hpp"
#include "lib/base/require.hpp"
#include "lib/optim/matrix_parts.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"

namespace llmtrain::optim {

namespace {

using kernels::Matmul;
using kernels::SubspaceStep;
using kernels::TopSingularVectors;

struct GaloreOptions : recipe::Section {
  recipe::Key<recipe::Count> rank{this, "rank", 128,
                                  "dims of a matrix's subspace; of a smaller matrix all",
                                  recipe::at_least(1)};
  recipe::Key<recipe::Count> update_proj_gap{this, "update_proj_gap", 200,
                                             "updates between two choices of the subspaces",
                                             recipe::at_least(1)};
  recipe::Key<double> scale{this, "scale", 0.25, "factor on the step of a matrix",
                            recipe::at_least(0)};
  recipe::Key<std::vector<double>> betas{
      this,
      "betas",
      {0.9, 0.999},
      "decay of the mean of the gradient and of its square",
      recipe::at_least(0) & recipe::below(1) & recipe::length(2)};
  recipe::Key<double> eps{this, "eps", 1e-6, "added to the root of the second moment",
                          recipe::above(0)};
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0,
                                   "decoupled weight decay, after the step", recipe::at_least(0)};
};

kernels::rules::AdamEpsHat rule_of(const GaloreOptions& options) {
  return {{.beta1 = options.betas()[0], .beta2 = options.betas()[1], .eps = options.eps()}};
}

class Galore final : public Optimizer {
 public:
  explicit Galore(const GaloreOptions& options)
      : Optimizer(options.weight_decay()),
        rule_(rule_of(options)),
        others_({.rule = rule_,
                 .weight_decay = options.weight_decay(),
                 .decay = kernels::WeightDecay::after_step,
                 .corrected = {rule_.beta1, rule_.beta2}}),
        rank_(static_cast<std::int64_t>(options.rank())),
        gap_(static_cast<std::int64_t>(options.update_proj_gap())),
        scale_(options.scale()) {}

  MomentDecays corrected_decays() const override { return others_.corrected_decays(); }

  std::vector<StateSpec> states(const Parameter& parameter) const override {
    if (parameter.role() != ParameterRole::matrix) return others_.states(parameter);
    const Subspace of = subspace_of(parameter);
    const DType dtype = parameter.master_dtype();
    const auto state = [&](std::string_view name, const Shape& matrix) {
      return StateSpec{.name = name, .dtype = dtype, .matrix = matrix};
    };
    return {state("projector", of.projector), state("m", of.inside), state("v", of.inside)};
  }

  std::int64_t indivisible(const Parameter& parameter) const override {
    return parameter.role() == ParameterRole::matrix ? 0 : 1;
  }
  std::int64_t divisible(const Parameter& parameter) const override {
    return parameter.role() == ParameterRole::matrix ? 0 : others_.divisible(parameter);
  }

  void bind(Device& device, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters) override {
    mesh_ = &mesh;
    for (const OptimizedParameter& p : parameters) {
      const bool is_matrix = p.parameter->role() == ParameterRole::matrix;
      (is_matrix ? matrices_ : not_matrices_).push_back(p);
    }
    others_.bind(device, mesh, not_matrices_);
  }

  void update(const kernels::KernelCtx& ctx, const View& decision) const override {
    for (const OptimizedParameter& p : matrices_) update_matrices(ctx, p, decision);
    others_.update(ctx, decision);
  }

 private:
  /// Shapes for one matrix [m, n]: with m >= n g is projected from the right, by a projector [r, n]
  /// on [m, r]; else from the left, by [m, r] on [r, n].
  struct Subspace {
    bool right;
    Shape projector, inside;
  };
  Subspace subspace_of(const Parameter& parameter) const {
    const Shape& shape = parameter.global_shape();
    const std::int64_t m = shape[shape.rank() - 2], n = shape[shape.rank() - 1];
    const std::int64_t r = std::min({rank_, m, n});
    if (m >= n) return {true, {r, n}, {m, r}};
    return {false, {m, r}, {r, n}};
  }

  void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                       const View& decision) const {
    const Parameter& parameter = *p.parameter;
    const Shape& shape = parameter.box().shape;
    const MatrixParts parts(parameter, *mesh_);
    // The clipped gradient, and in its place the step.
    const Tensor step = ctx.device->allocate(shape, parameter.master_dtype(), Category::workspace,
                                             "step of a matrix");
    launch(ctx, kernels::ScaleUpdate{.x = parameter.own_grad(),
                                     .y = step,
                                     .decision = decision,
                                     .scale = {.value = 1, .clipped = true}});
    // Experts have a matrix each.
    const std::int64_t rows = shape[shape.rank() - 2];
    const Subspace of = subspace_of(parameter);
    for (std::int64_t k = 0; k * rows < step.view().rows(); ++k) {
      const auto state = [&](std::size_t i, const Shape& matrix) {
        return p.states[i].row_range(k * matrix[0], matrix[0]);
      };
      const Tensor part = step.row_range(k * rows, rows);
      const Tensor whole = parts.whole(ctx, part);
      step_matrix(ctx, of, whole, state(0, of.projector), state(1, of.inside), state(2, of.inside),
                  decision);
      if (!parts.are_several()) continue;
      launch(ctx, kernels::ScaleCast{.x = parts.own(whole.view()), .y = part});
    }
    kernels::UpdateOperands along = update_operands(parameter);
    along.gradient = step;
    launch(ctx, kernels::StepUpdate{.to = along,
                                    .decision = decision,
                                    .lr_scale = p.lr_scale,
                                    .weight_decay = p.weight_decay,
                                    .factor = -scale_,
                                    .decay_last = true});
  }

  /// g, a whole matrix's gradient, becomes its step. Where the decision does not apply, that is of
  /// no use and the states stay.
  void step_matrix(const kernels::KernelCtx& ctx, const Subspace& of, const Tensor& g,
                   const Tensor& projector, const Tensor& m, const Tensor& v,
                   const View& decision) const {
    launch(ctx,
           TopSingularVectors{.g = g, .vectors = projector, .decision = decision, .gap = gap_});
    const Tensor inside =
        ctx.device->allocate(of.inside, g.dtype(), Category::workspace, "galore.inside");
    launch(ctx, Matmul{.a = of.right ? g : projector,
                       .b = of.right ? projector : g,
                       .c = inside,
                       .bias = {},
                       .transpose_a = !of.right,
                       .transpose_b = of.right});
    launch(ctx, SubspaceStep{
                    .g = inside, .m = m, .v = v, .y = inside, .decision = decision, .rule = rule_});
    launch(ctx, Matmul{.a = of.right ? inside : projector,
                       .b = of.right ? projector : inside,
                       .c = g,
                       .bias = {}});
  }

  kernels::rules::AdamEpsHat rule_;
  RuleOptimizer others_;
  const Mesh* mesh_ = nullptr;
  std::vector<OptimizedParameter> matrices_, not_matrices_;
  std::int64_t rank_, gap_;
  double scale_;
};

}  // namespace

OptimizerRow galore() {
  return {.name = "galore",
          .doc = "Adam in a subspace of each matrix, whose states are small; Adam for all else",
          .options = &recipe::section_of<GaloreOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Galore>(choice.as<GaloreOptions>());
          },
          .cpu_only = true};
}

}  // namespace llmtrain::optim
