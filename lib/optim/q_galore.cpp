// Q-GaLore (arXiv 2407.08296), in the form of VITA-Group/Q-GaLore q_galore_torch/
// q_galore_adamw8bit.py and q_galore_projector.py (proj_type std), with that class's defaults and,
// of what it leaves to its caller, those of the authors' scripts: GaLore by a projector of a few
// bits, which is chosen the less often the less its first vector turns, with moments of 8 bits.
// That is for the matrices of attention and MLP; embeddings, the head, norms and biases follow
// 8-bit AdamW. What is decided here:
// - Weights have the form that the recipe gives them, the authors' 8 bits and stochastic rounding.
// - A cosine does not depend on signs that a library gives to vectors: a subspace's first vector
//   has the one by which it is nearer to the last choice's (kernels::FollowSubspace).
// - When a subspace is chosen next is a state of each matrix, as are the similarities of the last
//   choices.
// - Scales of the projector's codes are FP32, whatever the master; of a projector that is no whole
//   number of groups, which the authors refuse, the last group is short.
#include "kernels/elementwise.hpp"
#include "kernels/projected.hpp"
#include "kernels/quantized_subspace.hpp"
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/eight_bit.hpp"
#include "lib/optim/rows.hpp"
#include "lib/optim/subspace_optimizer.hpp"

namespace llmtrain::optim {

namespace {

struct QGaloreOptions : AdamOptions {
  QGaloreOptions() : AdamOptions({.weight_decay = 0.01}) {}

  recipe::Key<recipe::Count> rank{this, "rank", 128,
                                  "dims of a matrix's subspace; of a smaller matrix all",
                                  recipe::at_least(1)};
  recipe::Key<recipe::Count> update_proj_gap{
      this, "update_proj_gap", 200, "updates between the first choices of a matrix's subspace",
      recipe::at_least(1)};
  recipe::Key<double> scale{this, "scale", 0.25, "factor on the step of a matrix",
                            recipe::at_least(0)};
  recipe::Key<std::optional<int>> proj_bits{
      this, "proj_bits", 4, "bits of a number of a projector; null: it is not quantized",
      recipe::between(2, 8)};
  recipe::Key<recipe::Count> proj_group_size{this, "proj_group_size", 256,
                                             "numbers of a projector that share a scale and a zero",
                                             recipe::at_least(1)};
  recipe::Key<double> cos_threshold{
      this, "cos_threshold", 0.4,
      "mean similarity of the last choices of a subspace from which on the gap grows",
      recipe::between(-1, 1)};
  recipe::Key<double> gamma_proj{this, "gamma_proj", 2, "what the gap is multiplied by",
                                 recipe::at_least(1)};
  recipe::Key<recipe::Count> queue_size{this, "queue_size", 5, "similarities of which the mean is",
                                        recipe::at_least(1)};
  MinSizeKey min_8bit_size{this};
  MixedDecayOrderKey decay_order{this};

  void validate(recipe::Issues& issues) const override {
    if (proj_bits() || !proj_group_size.is_set()) return;
    issues.add(proj_group_size, "projectors are not quantized: optimizer.proj_bits is null",
               "leave it out, or set optimizer.proj_bits");
  }
};

kernels::rules::Adam rule_of(const QGaloreOptions& options) {
  return {.beta1 = options.betas()[0], .beta2 = options.betas()[1], .eps = options.eps()};
}

std::unique_ptr<Optimizer> others(const QGaloreOptions& options) {
  const kernels::WeightDecay decay =
      options.decay_order().value_or(kernels::WeightDecay::before_step);
  return std::make_unique<EightBitOptimizer>(
      EightBitOptimizer::Settings{.rule = rule_of(options),
                                  .weight_decay = options.weight_decay(),
                                  .decay = decay,
                                  .min_size = options.min_8bit_size(),
                                  .others = std::make_unique<AdamMoments>(options, decay)});
}

class QGalore final : public SubspaceOptimizer {
 public:
  explicit QGalore(const QGaloreOptions& options)
      : SubspaceOptimizer(
            {.rank = static_cast<std::int64_t>(options.rank()),
             .square_from_right = true,
             .factor = options.scale(),
             .decay = options.decay_order().value_or(kernels::WeightDecay::after_step)},
            others(options)),
        rule_(rule_of(options)),
        gap_(static_cast<std::int64_t>(options.update_proj_gap())),
        bits_(options.proj_bits()),
        group_(static_cast<std::int64_t>(options.proj_group_size())),
        threshold_(options.cos_threshold()),
        growth_(options.gamma_proj()),
        queue_(static_cast<std::int64_t>(options.queue_size())),
        min_8bit_size_(options.min_8bit_size()) {}

 private:
  bool in_eight_bits(const Subspace& of) const { return of.inside.numel() >= min_8bit_size_; }

  std::vector<StateSpec> matrix_states(const Parameter& parameter) const override {
    const Subspace of = subspace_of(parameter);
    const DType master = parameter.master_dtype();
    std::vector<StateSpec> specs;
    const auto add = [&](std::string_view name, DType dtype, const Shape& matrix, double initial) {
      specs.push_back({.name = name, .dtype = dtype, .initial = initial, .matrix = matrix});
    };
    add("projector", bits_ ? DType::u8 : master, of.projector, 0);
    if (bits_) {
      const Shape groups{1, kernels::affine_groups(of.projector.numel(), group_)};
      add("projector_scale", DType::f32, groups, 0);
      add("projector_zero", DType::u8, groups, 0);
    }
    add("leading_vector", master, {1, of.projector.numel() / of.dims()}, 0);
    add("similarities", DType::f64, {1, queue_}, kernels::FollowSubspace::kNone);
    add("gap", DType::f64, {1, 1}, static_cast<double>(gap_));
    const Shape blocks{1, kernels::dynamic_blocks(of.inside.numel())};
    for (const auto& [moment, scale] : {std::pair{"m", "m_scale"}, std::pair{"v", "v_scale"}}) {
      add(moment, in_eight_bits(of) ? DType::u8 : master, of.inside, 0);
      if (in_eight_bits(of)) add(scale, DType::f32, blocks, 0);
    }
    return specs;
  }

  /// The same of one matrix.
  struct States {
    Tensor projector, projector_scale, projector_zero, leading_vector, similarities, gap;
    std::array<Tensor, 2> moments, scales;
  };
  States states_of(const WholeMatrix& matrix) const {
    States states;
    auto next = matrix.states.begin();
    states.projector = *next++;
    if (bits_) {
      states.projector_scale = *next++;
      states.projector_zero = *next++;
    }
    states.leading_vector = *next++;
    states.similarities = *next++;
    states.gap = *next++;
    for (std::size_t k = 0; k < states.moments.size(); ++k) {
      states.moments[k] = *next++;
      if (in_eight_bits(matrix.of)) states.scales[k] = *next++;
    }
    return states;
  }

  void step_matrix(const kernels::KernelCtx& ctx, const WholeMatrix& matrix,
                   const View& decision) const override {
    const auto scratch = [&](const Shape& shape, DType dtype, std::string_view tag) {
      return ctx.device->allocate(shape, dtype, Category::workspace, tag);
    };
    const Subspace& of = matrix.of;
    const Tensor& g = matrix.g;
    const States states = states_of(matrix);
    const Shape scalars{kernels::UpdateDecision::kScalars};
    const Tensor at_unit_rate = scratch(scalars, DType::f64, "q_galore.step decision"),
                 choice = scratch(scalars, DType::f64, "q_galore.choice");
    launch(ctx,
           kernels::SubspaceDecisions{
               .decision = decision, .gap = states.gap, .step = at_unit_rate, .choice = choice});
    const Tensor projector =
        bits_ ? scratch(of.projector, g.dtype(), "q_galore.projector") : states.projector;
    choose_projector(ctx, matrix, states, projector, choice);
    const Tensor inside = scratch(of.inside, g.dtype(), "q_galore.inside");
    of.project(ctx, g, projector, inside);
    // Moves by Adam from zero, so that one kernel serves parameters and subspaces.
    const Tensor moved = scratch(of.inside, g.dtype(), "q_galore.step");
    launch(ctx, kernels::Fill{.y = moved, .value = 0});
    move(ctx, states, {.parameter = moved, .gradient = inside, .compute_copy = {}}, at_unit_rate);
    of.take_back(ctx, moved, projector, g);
  }

  /// The projector as its codes have it, which follow g where the subspace is chosen anew.
  void choose_projector(const kernels::KernelCtx& ctx, const WholeMatrix& matrix,
                        const States& states, const Tensor& projector, const View& choice) const {
    launch(ctx, kernels::TopSingularVectors{
                    .g = matrix.g, .vectors = projector, .decision = choice, .apart = gap_});
    launch(ctx, kernels::FollowSubspace{.vectors = projector,
                                        .leading = states.leading_vector,
                                        .similarities = states.similarities,
                                        .gap = states.gap,
                                        .decision = choice,
                                        .of_rows = matrix.of.right,
                                        .threshold = threshold_,
                                        .growth = growth_,
                                        .apart = gap_});
    if (!bits_) return;
    launch(ctx, kernels::AffineQuantize{.x = projector,
                                        .codes = states.projector,
                                        .scales = states.projector_scale,
                                        .zeros = states.projector_zero,
                                        .decision = choice,
                                        .bits = *bits_,
                                        .group = group_,
                                        .apart = gap_});
    launch(ctx, kernels::AffineDequantize{.codes = states.projector,
                                          .scales = states.projector_scale,
                                          .zeros = states.projector_zero,
                                          .y = projector,
                                          .group = group_});
  }

  void move(const kernels::KernelCtx& ctx, const States& states, const kernels::UpdateOperands& to,
            const View& decision) const {
    const auto& [m, v] = states.moments;
    if (!states.scales[0].defined()) {
      const kernels::AdamTensors tensors{.to = to, .m = m, .v = v};
      launch(ctx, kernels::AdamUpdate{.tensors = std::span(&tensors, 1),
                                      .table = {},
                                      .decision = decision,
                                      .beta1 = rule_.beta1,
                                      .beta2 = rule_.beta2,
                                      .eps = rule_.eps});
      return;
    }
    const kernels::EightBitTensors tensors{
        .to = to, .codes = {m, v}, .scales = {states.scales[0], states.scales[1]}};
    launch(
        ctx,
        kernels::EightBitUpdate{
            .tensors = std::span(&tensors, 1), .table = {}, .decision = decision, .rule = rule_});
  }

  kernels::rules::Adam rule_;
  std::int64_t gap_;
  std::optional<int> bits_;
  std::int64_t group_;
  double threshold_, growth_;
  std::int64_t queue_, min_8bit_size_;
};

}  // namespace

OptimizerRow q_galore() {
  return {.name = "q_galore",
          .doc =
              "GaLore by projectors of few bits, chosen when they turn, with moments of 8 bits; "
              "8-bit AdamW for all else",
          .options = &recipe::section_of<QGaloreOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<QGalore>(choice.as<QGaloreOptions>());
          },
          .cpu_only = true,
          .no_bf16_states = "keeps states of 8 bits"};
}

}  // namespace llmtrain::optim
