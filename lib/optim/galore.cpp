// GaLore (arXiv 2403.03507), in the form and with the defaults of jiaweizzhao/GaLore
// galore_torch/adamw.py and galore_projector.py (proj_type std): the gradient of a matrix is
// projected on the subspace of its largest singular values, Adam runs there, and its step is taken
// back. As its authors have it, that is for the matrices of attention and MLP; embeddings, the
// head, norms and biases follow the same Adam as they are.
#include "kernels/projected.hpp"
#include "lib/optim/decay_order.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/rule_optimizer.hpp"
#include "lib/optim/subspace_optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

namespace {

using kernels::SubspaceStep;
using kernels::TopSingularVectors;

struct GaloreOptions : UpdateOptions {
  GaloreOptions() : UpdateOptions(1e-3) {}

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
  recipe::Key<double> weight_decay{this, "weight_decay", 0.0, "decoupled weight decay",
                                   recipe::at_least(0)};
  DecayOrderKey decay_order{this, kernels::WeightDecay::after_step};
};

kernels::rules::AdamEpsHat rule_of(const GaloreOptions& options) {
  return {{.beta1 = options.betas()[0], .beta2 = options.betas()[1], .eps = options.eps()}};
}

std::unique_ptr<Optimizer> others(const GaloreOptions& options) {
  const kernels::rules::AdamEpsHat rule = rule_of(options);
  return std::make_unique<RuleOptimizer>(
      RuleOptimizer::Settings{.rule = rule,
                              .weight_decay = options.weight_decay(),
                              .decay = options.decay_order(),
                              .corrected = {rule.beta1, rule.beta2}});
}

class Galore final : public SubspaceOptimizer {
 public:
  explicit Galore(const GaloreOptions& options)
      : SubspaceOptimizer({.rank = static_cast<std::int64_t>(options.rank()),
                           .square_from_right = true,
                           .factor = -options.scale(),
                           .decay = options.decay_order()},
                          others(options)),
        rule_(rule_of(options)),
        gap_(static_cast<std::int64_t>(options.update_proj_gap())) {}

 private:
  void step_matrix(const kernels::KernelCtx& ctx, const WholeMatrix& matrix,
                   const View& decision) const override {
    const Tensor &g = matrix.g, &projector = matrix.states[0];
    launch(ctx,
           TopSingularVectors{.g = g, .vectors = projector, .decision = decision, .gap = gap_});
    const Tensor inside =
        ctx.device->allocate(matrix.of.inside, g.dtype(), Category::workspace, "galore.inside");
    matrix.of.project(ctx, g, projector, inside);
    launch(ctx, SubspaceStep{.g = inside,
                             .m = matrix.states[1],
                             .v = matrix.states[2],
                             .y = inside,
                             .decision = decision,
                             .rule = rule_});
    matrix.of.take_back(ctx, inside, projector, g);
  }

  kernels::rules::AdamEpsHat rule_;
  std::int64_t gap_;
};

}  // namespace

OptimizerRow galore() {
  return {.name = "galore",
          .doc = "Adam in a subspace of each matrix, whose states are small; Adam for all else",
          .options = &recipe::section_of<GaloreOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Galore>(choice.as<GaloreOptions>());
          },
          .cpu_only = true,
          .no_bf16_states = "keeps states in subspaces, in FP32"};
}

}  // namespace llmtrain::optim
