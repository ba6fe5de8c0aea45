#include "lib/optim/optimizer_set.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

OptimizerSet::OptimizerSet(const kernels::KernelCtx& ctx, const OptimizerOptions& options,
                           const ParameterStore& store)
    : store_(&store),
      optimizer_(options.name().make(options.name)),
      norm_(*ctx.device, store),
      lr_(options.lr()),
      max_grad_norm_(options.max_grad_norm()),
      max_grad_value_(options.max_grad_value()) {
  const auto settings = parameter_settings(options, optimizer_->weight_decay(), store.all());
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const Parameter& parameter = *store.all()[i];
    Slot& slot = slots_.emplace_back(Slot{&parameter, settings[i], {}});
    for (const StateSpec& spec : optimizer_->states(parameter)) {
      std::string name = fmt::format("{}#{}", parameter.name(), spec.name);
      const Tensor state =
          ctx.device->allocate(parameter.box().shape, spec.dtype, Category::optimizer, name);
      launch(ctx, kernels::Fill{.y = state, .value = 0});
      slot.states.push_back(state);
      states_.push_back({std::move(name), &parameter, state});
    }
  }
}

void OptimizerSet::zero_grads(const kernels::KernelCtx& ctx) const {
  for (const auto& group : store_->groups()) {
    launch(ctx, kernels::Fill{.y = group->grad(), .value = 0});
  }
}

// torch.nn.utils.clip_grad_norm_, down to its 1e-6.
double OptimizerSet::clip_scale(double grad_norm) const {
  return max_grad_norm_ ? std::min(1.0, *max_grad_norm_ / (grad_norm + 1e-6)) : 1.0;
}

StepResult OptimizerSet::step(const kernels::KernelCtx& ctx, const Mesh& mesh, double lr_factor) {
  if (max_grad_value_) {
    for (const auto& group : store_->groups()) {
      launch(ctx, kernels::ClipByValue{.g = group->grad(), .limit = *max_grad_value_});
    }
  }
  StepResult result{.lr = lr_ * lr_factor, .grad_norm = norm_.measure(ctx, mesh)};
  result.finite = std::isfinite(result.grad_norm);
  if (!result.finite) return result;

  result.clip_scale = clip_scale(result.grad_norm);
  ++steps_taken_;
  for (const Slot& slot : slots_) {
    optimizer_->update(ctx, *slot.parameter, slot.states,
                       {.lr = result.lr * slot.settings.lr_scale,
                        .weight_decay = slot.settings.weight_decay,
                        .grad_scale = result.clip_scale,
                        .step = steps_taken_});
  }
  return result;
}

void OptimizerSet::set_steps_taken(std::int64_t steps) {
  require(steps >= 0, "an optimizer that has taken {} steps", steps);
  steps_taken_ = steps;
}

}  // namespace llmtrain::optim
