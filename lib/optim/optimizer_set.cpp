#include "lib/optim/optimizer_set.hpp"

#include <limits>

#include "kernels/elementwise.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"
#include "lib/param/parameter_words.hpp"

namespace llmtrain::optim {

std::function<std::int64_t(const Parameter&)> indivisible_pieces(const OptimizerOptions& options) {
  return [optimizer = std::shared_ptr(options.name().make(options.name))](const Parameter& p) {
    return optimizer->indivisible(p);
  };
}

void StateTensor::read(std::int64_t first, std::span<std::byte> to) const {
  if (file != nullptr) return file->read(parameter_in_file, state_in_file, first, to);
  const auto count = static_cast<std::int64_t>(to.size() / size_of(tensor.dtype()));
  tensor.device().copy_to_host(to, tensor.reshape({tensor.numel()}).columns(first, count));
}

void StateTensor::write(std::int64_t first, std::span<const std::byte> values) const {
  if (file != nullptr) return file->write(parameter_in_file, state_in_file, first, values);
  const auto count = static_cast<std::int64_t>(values.size() / size_of(tensor.dtype()));
  tensor.device().copy_from_host(tensor.reshape({tensor.numel()}).columns(first, count), values);
}

OptimizerSet::OptimizerSet(const kernels::KernelCtx& ctx, const OptimizerOptions& options,
                           const ParameterStore& store, const Mesh& mesh,
                           std::optional<LossScaling> scaling,
                           const std::optional<Offload>& offload, std::uint64_t seed)
    : store_(&store),
      optimizer_(options.name().make(options.name)),
      norm_(*ctx.device, store, mesh),
      state_type_(options.state_dtype()),
      lr_(options.lr()),
      max_grad_norm_(options.max_grad_norm()),
      max_grad_value_(options.max_grad_value()),
      scaling_(scaling) {
  decision_ = ctx.device->allocate({kernels::UpdateDecision::kScalars}, DType::f64,
                                   Category::optimizer, "update decision");
  set_progress(first_progress());
  if (offload && offload->updates_on_host()) {
    on_host_ = std::make_unique<HostUpdates>(*ctx.device, *offload);
  }
  const kernels::KernelCtx of_states = on_host_ ? on_host_->context(ctx) : ctx;
  const bool in_file = offload && offload->in_file();
  const auto settings = parameter_settings(options, optimizer_->weight_decay(), store.all());
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const Parameter& parameter = *store.all()[i];
    if (!parameter.is_trained()) continue;
    for (const StateSpec& spec : specs_of(parameter)) {
      state_names_.push_back(fmt::format("{}#{}", parameter.name(), spec.name));
    }
    if (!parameter.is_local() || parameter.own_slice().count == 0) continue;
    OptimizedParameter& optimized = parameters_.emplace_back(
        OptimizedParameter{&parameter, settings[i].lr_scale, settings[i].weight_decay, {}});
    optimized.rounding = rounding_of(parameter, seed);
    add_states(of_states, optimized, in_file);
  }
  if (options.gradient_noise) {
    noise_.emplace(*ctx.device, parameters_, options.gradient_noise, seed);
  }
  bind(ctx, options, mesh, offload);
}

void OptimizerSet::bind(const kernels::KernelCtx& ctx, const OptimizerOptions& options,
                        const Mesh& mesh, const std::optional<Offload>& offload) {
  if (!offload) return optimizer_->bind(*ctx.device, mesh, parameters_);
  if (state_names_.empty() && !offload->masters && !offload->parameters) {
    throw RefusedKey("offload.optimizer",
                     fmt::format("{} keeps no states that could be anywhere", options.name().name),
                     "leave it out");
  }
  if (on_host_) {
    on_host_->bind(ctx, options, mesh, parameters_, stateful_parameters());
  } else {
    offloaded_ =
        std::make_unique<OffloadedStates>(ctx, parameters_, stateful_parameters(), *offload);
    offloaded_->bind(options, *ctx.device, mesh);
  }
  for (StateTensor& state : states_) state.file = offloaded();
}

const ValuesElsewhere* OptimizerSet::elsewhere() const {
  if (on_host_) return on_host_.get();
  return offloaded_.get();
}

std::vector<StateSpec> OptimizerSet::specs_of(const Parameter& parameter) const {
  std::vector<StateSpec> specs = optimizer_->states(parameter);
  if (state_type_ != StateType::bf16) return specs;
  for (StateSpec& spec : specs) {
    require(spec.is_elementwise() && spec.dtype == DType::f32, "{}#{} in bf16", parameter.name(),
            spec.name);
    spec.dtype = DType::bf16;
  }
  return specs;
}

kernels::StateRounding OptimizerSet::rounding_of(const Parameter& parameter,
                                                 std::uint64_t seed) const {
  kernels::StateRounding rounding;
  if (state_type_ != StateType::bf16) return rounding;
  constexpr std::string_view kPurpose = "rounding of states";
  rounding.words = words_of(parameter, seed, kPurpose);
  std::size_t state = 0;
  for (const StateSpec& spec : specs_of(parameter)) {
    const std::string name = fmt::format("{}#{}", parameter.name(), spec.name);
    rounding.keys.at(state++) = philox_key(seed, kPurpose, name);
  }
  return rounding;
}

void OptimizerSet::add_states(const kernels::KernelCtx& ctx, OptimizedParameter& optimized,
                              bool in_file) {
  const Parameter& parameter = *optimized.parameter;
  std::size_t number = 0;
  for (const StateSpec& spec : specs_of(parameter)) {
    StateTensor& state = states_.emplace_back();
    state.name = fmt::format("{}#{}", parameter.name(), spec.name);
    state.parameter = &parameter;
    state.place = place_of(spec, parameter);
    state.is_first = begins_blocks(spec, parameter);
    state.parameter_in_file = parameters_.size() - 1;
    state.state_in_file = number++;
    state.dtype_in_file = spec.dtype;
    if (in_file) continue;
    const TensorPlace& place = state.place;
    const Shape shape =
        place.own.count == place.box.shape.numel() ? place.box.shape : Shape{place.own.count};
    state.tensor = ctx.device->allocate(shape, spec.dtype, Category::optimizer, state.name);
    launch(ctx, kernels::Fill{.y = state.tensor, .value = spec.initial});
    optimized.states.push_back(state.tensor);
  }
}

std::vector<StatefulParameter> OptimizerSet::stateful_parameters() const {
  std::vector<StatefulParameter> stateful;
  for (const OptimizedParameter& p : parameters_) {
    StatefulParameter& kept =
        stateful.emplace_back(StatefulParameter{.parameter = p.parameter,
                                                .states = specs_of(*p.parameter),
                                                .divisible = optimizer_->divisible(*p.parameter)});
    if (p.parameter->master_is_elsewhere()) kept.states.push_back(master_spec(*p.parameter));
    if (p.parameter->copy_is_elsewhere()) kept.states.push_back(copy_spec(*p.parameter));
  }
  return stateful;
}

OptimizerSet::StateBytes OptimizerSet::state_bytes(const Parameter& parameter,
                                                   std::int64_t elements) const {
  StateBytes bytes;
  for (const StateSpec& spec : specs_of(parameter)) {
    const std::int64_t count = values_for(spec, parameter, elements);
    const std::uint64_t size = static_cast<std::uint64_t>(count) * size_of(spec.dtype);
    if (!offloaded_ && !on_host_) bytes.kept += size;
    if (begins_blocks(spec, parameter)) bytes.written += size;
  }
  return bytes;
}

void OptimizerSet::zero_grads(const kernels::KernelCtx& ctx) const {
  for (const auto& group : store_->local_groups()) {
    launch(ctx, kernels::Fill{.y = group->step_grad(), .value = 0});
  }
}

void OptimizerSet::launch_step(const kernels::KernelCtx& ctx, const View& scalars,
                               const View& loss_sum) {
  if (max_grad_value_) {
    const View scale = scaling_ ? decision_.view() : View{};
    for (const auto& group : store_->local_groups()) {
      launch(ctx, kernels::ClipByValue{
                      .g = group->step_grad(), .limit = *max_grad_value_, .decision = scale});
    }
  }
  const MomentDecays decays = optimizer_->corrected_decays();
  launch(ctx, kernels::DecideUpdate{
                  .squares = norm_.squares(ctx),
                  .loss_sum = loss_sum,
                  .decision = decision_,
                  .scalars = scalars,
                  .max_norm = max_grad_norm_.value_or(std::numeric_limits<double>::infinity()),
                  .beta1 = decays.beta1,
                  .beta2 = decays.beta2,
                  .loss_scale = scaling_ ? scaling_->rule() : kernels::LossScaleRule{}});
  if (noise_) noise_->add(ctx, decision_);
  if (on_host_) return;
  if (offloaded_) return offloaded_->update(ctx, decision_);
  optimizer_->update(ctx, decision_);
}

void OptimizerSet::update_on_host(const kernels::KernelCtx& ctx) {
  if (on_host_) on_host_->update(ctx, decision_);
}

StepResult step_result(const kernels::UpdateDecision& decision) {
  return {.lr = decision.lr,
          .grad_norm = decision.grad_norm,
          .clip_scale = decision.grad_scale * decision.used_loss_scale,  // exact
          .loss_scale = decision.used_loss_scale,
          .finite = decision.is_finite(),
          .applied = decision.applies(),
          .overflowed = decision.overflowed()};
}

UpdateProgress OptimizerSet::progress() const {
  kernels::UpdateDecision decision;
  decision_.device().copy_to_host(std::as_writable_bytes(std::span(&decision, 1)), decision_);
  return {.steps_taken = static_cast<std::int64_t>(decision.updates),
          .loss_scale = decision.loss_scale,
          .good_steps = static_cast<std::int64_t>(decision.good_steps)};
}

UpdateProgress OptimizerSet::first_progress() const {
  return {.loss_scale = scaling_ ? scaling_->initial : 1};
}

void OptimizerSet::set_progress(const UpdateProgress& progress) {
  require(progress.steps_taken >= 0 && progress.good_steps >= 0,
          "an optimizer that has taken {} steps, {} since its scale changed", progress.steps_taken,
          progress.good_steps);
  const bool dynamic = scaling_ && scaling_->dynamic();
  const UpdateProgress& scale = dynamic ? progress : first_progress();
  const kernels::UpdateDecision decision{.updates = static_cast<double>(progress.steps_taken),
                                         .loss_scale = scale.loss_scale,
                                         .good_steps = static_cast<double>(scale.good_steps)};
  decision_.device().copy_from_host(decision_, std::as_bytes(std::span(&decision, 1)));
}

}  // namespace llmtrain::optim
