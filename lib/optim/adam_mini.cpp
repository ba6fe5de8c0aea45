// Adam-mini (arXiv 2406.16793): the elements of a block share one second moment. Blocks are heads
// of query and key projections, rows of all other matrices and tables, and whole norms; biases
// follow AdamW. Factors are those of the authors' version 1.1.
#include <algorithm>

#include "kernels/block_moments.hpp"
#include "lib/base/require.hpp"
#include "lib/optim/adam_moments.hpp"
#include "lib/optim/rows.hpp"

namespace llmtrain::optim {

namespace {

struct AdamMiniOptions : DecoupledAdamOptions {
  AdamMiniOptions() : DecoupledAdamOptions(AdamDefaults{}) {}
};

StateSpec block_state(const Parameter& parameter) {
  Shape block = parameter.global_shape();
  const int rows = block.rank() - 2;
  for (int d = 0; d <= rows; ++d) block = block.with(d, d == rows ? parameter.rows_per_head() : 1);
  return {.name = "v", .dtype = parameter.master_dtype(), .block = block};
}

class AdamMini final : public Optimizer {
 public:
  explicit AdamMini(const AdamMiniOptions& options)
      : Optimizer(options.weight_decay()),
        others_(options, options.decay_order()),
        decay_(options.decay_order()),
        eps_(options.eps()) {}

  MomentDecays corrected_decays() const override { return others_.corrected_decays(); }

  std::vector<StateSpec> states(const Parameter& parameter) const override {
    if (parameter.role() == ParameterRole::bias) return others_.states(parameter);
    return {{"m", parameter.master_dtype()}, block_state(parameter)};
  }

  std::int64_t indivisible(const Parameter& parameter) const override {
    if (parameter.role() == ParameterRole::bias) return 1;
    const bool one_block = parameter.global_shape().rank() == 1;
    return one_block ? 0 : elements_per_value(block_state(parameter), parameter);
  }
  std::int64_t divisible(const Parameter& parameter) const override {
    return parameter.role() == ParameterRole::bias ? others_.divisible(parameter) : 0;
  }

  void bind(Device& device, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters) override {
    mesh_ = &mesh;
    for (const OptimizedParameter& p : parameters) {
      (p.parameter->role() == ParameterRole::bias ? not_in_blocks_ : in_blocks_).push_back(p);
    }
    others_.bind(device, mesh, not_in_blocks_);
  }

  void update(const kernels::KernelCtx& ctx, const View& decision) const override {
    for (const OptimizedParameter& p : in_blocks_) update_blocks(ctx, p, decision);
    others_.update(ctx, decision);
  }

 private:
  void update_blocks(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                     const View& decision) const {
    const Parameter& parameter = *p.parameter;
    const StateSpec state = block_state(parameter);
    const Tensor& moment = p.states[1];
    const std::int64_t here = elements_per_value(state, parameter);
    const Tensor squares = ctx.device->allocate({moment.numel()}, DType::f64, Category::workspace,
                                                "adam_mini.squares");
    launch(ctx, kernels::BlockSquares{.g = p.whole_gradient(), .block = here, .out = squares});
    if (here < state.block.numel()) {  // ranks of tp have a part of each block
      mesh_->axis(Axis::tp).all_reduce(squares, ReduceOp::sum, parameter.name()).wait();
    }
    launch(ctx, kernels::BlockMoments{.squares = squares,
                                      .moment = moment,
                                      .decision = decision,
                                      .beta2 = corrected_decays().beta2,
                                      .count = state.block.numel()});
    launch(ctx, kernels::BlockAdamUpdate{.to = update_operands(p),
                                         .m = p.states[0],
                                         .moment = moment,
                                         .decision = decision,
                                         .block = here,
                                         .lr_scale = p.lr_scale,
                                         .weight_decay = p.weight_decay,
                                         .beta1 = corrected_decays().beta1,
                                         .eps = eps_,
                                         .decay_last = decay_ == kernels::WeightDecay::after_step});
  }

  AdamMoments others_;
  const Mesh* mesh_ = nullptr;
  std::vector<OptimizedParameter> in_blocks_, not_in_blocks_;
  kernels::WeightDecay decay_;
  double eps_;
};

}  // namespace

OptimizerRow adam_mini() {
  return {.name = "adam_mini",
          .doc = "AdamW with one second moment for each row, head or norm",
          .options = &recipe::section_of<AdamMiniOptions>,
          .make = [](const OptimizerChoice& choice) -> std::unique_ptr<Optimizer> {
            return std::make_unique<AdamMini>(choice.as<AdamMiniOptions>());
          },
          .no_bf16_states = "keeps one v for a block, and has kernels for states of FP32"};
}

}  // namespace llmtrain::optim
