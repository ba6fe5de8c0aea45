#include "lib/optim/adam_moments.hpp"

#include <utility>

namespace llmtrain::optim {

AdamMoments::AdamMoments(const AdamOptions& options, kernels::WeightDecay decay)
    : Optimizer(options.weight_decay()),
      beta1_(options.betas()[0]),
      beta2_(options.betas()[1]),
      eps_(options.eps()),
      decay_(decay) {}

std::vector<StateSpec> AdamMoments::states(const Parameter& parameter) const {
  const DType dtype = parameter.master_dtype();
  return {{"m", dtype}, {"v", dtype}};
}

void AdamMoments::bind(Device& device, const Mesh&,
                       std::span<const OptimizedParameter> parameters) {
  for (const OptimizedParameter& p : parameters) {
    tensors_.push_back({.to = update_operands(p),
                        .m = p.states[0],
                        .v = p.states[1],
                        .lr_scale = p.lr_scale,
                        .weight_decay = p.weight_decay,
                        .rounding = state_rounding(p)});
  }
  if (tensors_.empty()) return;
  table_ = kernels::make_table<kernels::AdamUpdate>(device, std::span(std::as_const(tensors_)),
                                                    "adam table");
}

void AdamMoments::update(const kernels::KernelCtx& ctx, const View& decision) const {
  if (tensors_.empty()) return;
  launch(ctx, kernels::AdamUpdate{.tensors = tensors_,
                                  .table = table_,
                                  .decision = decision,
                                  .beta1 = beta1_,
                                  .beta2 = beta2_,
                                  .eps = eps_,
                                  .decay = decay_});
}

}  // namespace llmtrain::optim
