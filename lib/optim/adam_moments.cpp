#include "lib/optim/adam_moments.hpp"

namespace llmtrain::optim {

AdamMoments::AdamMoments(const AdamOptions& options, Decay decay)
    : Optimizer(options.weight_decay()),
      beta1_(options.betas()[0]),
      beta2_(options.betas()[1]),
      eps_(options.eps()),
      decay_(decay) {}

std::vector<StateSpec> AdamMoments::states(const Parameter& parameter) const {
  const DType dtype = parameter.master().dtype();
  return {{"m", dtype}, {"v", dtype}};
}

void AdamMoments::update(const kernels::KernelCtx& ctx, const Parameter& parameter,
                         std::span<const Tensor> states, const UpdateScalars& scalars) const {
  launch(ctx, kernels::AdamUpdate{.to = update_operands(parameter, scalars.decision),
                                  .m = states[0],
                                  .v = states[1],
                                  .lr_scale = scalars.lr_scale,
                                  .beta1 = beta1_,
                                  .beta2 = beta2_,
                                  .eps = eps_,
                                  .weight_decay = scalars.weight_decay,
                                  .decoupled = decay_ == Decay::decoupled});
}

}  // namespace llmtrain::optim
