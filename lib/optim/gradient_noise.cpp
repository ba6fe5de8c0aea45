#include "lib/optim/gradient_noise.hpp"

#include <utility>

#include "lib/param/parameter_words.hpp"

namespace llmtrain::optim {

GradientNoise::GradientNoise(Device& device, std::span<const OptimizedParameter> parameters,
                             const GradientNoiseOptions& options, std::uint64_t seed)
    : eta_(options.eta()), gamma_(options.gamma()) {
  for (const OptimizedParameter& p : parameters) {
    gradients_.push_back(
        {.to = p.parameter->own_grad(), .words = words_of(*p.parameter, seed, "gradient noise")});
  }
  if (gradients_.empty()) return;
  table_ = kernels::make_table<kernels::GradientNoise>(device, std::span(std::as_const(gradients_)),
                                                       "gradient noise table");
}

void GradientNoise::add(const kernels::KernelCtx& ctx, const View& decision) const {
  if (gradients_.empty()) return;
  launch(ctx, kernels::GradientNoise{.gradients = gradients_,
                                     .table = table_,
                                     .decision = decision,
                                     .eta = eta_,
                                     .gamma = gamma_});
}

}  // namespace llmtrain::optim
