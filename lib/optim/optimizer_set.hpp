#pragma once
/// The chosen optimizer over all parameters: its state tensors, parameter groups and clipping.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/mesh/mesh.hpp"
#include "lib/optim/gradient_noise.hpp"
#include "lib/optim/gradient_norm.hpp"
#include "lib/optim/host_updates.hpp"
#include "lib/optim/loss_scaling.hpp"
#include "lib/optim/offloaded_states.hpp"
#include "lib/optim/optimizer.hpp"
#include "lib/optim/optimizer_options.hpp"
#include "lib/optim/parameter_groups.hpp"

namespace llmtrain::optim {

/// One step as the log shows it.
struct StepResult {
  double lr = 0;  // of parameters without a group
  /// Global L2 norm before clipping by norm, after clipping by value.
  double grad_norm = 0;
  double clip_scale = 1;
  /// What the loss was multiplied with; norm and clipping are those of the gradients without it.
  double loss_scale = 1;
  /// Loss and norm are neither NaN nor infinite.
  bool finite = true;
  /// False: they are, or the loss is above its limit (kernels::StepScalars), and nothing was
  /// updated.
  bool applied = true;
  /// Not finite because of the loss's scale, which has shrunk for the next step.
  bool overflowed = false;
};
StepResult step_result(const kernels::UpdateDecision& decision);

/// What a set has learned of its steps, besides the states.
struct UpdateProgress {
  /// Updates so far: Adam's t. Skipped steps do not count.
  std::int64_t steps_taken = 0;
  /// Of the next step, and the steps that applied since it changed or one did not.
  double loss_scale = 1;
  std::int64_t good_steps = 0;
};

/// One state tensor, as a checkpoint sees it.
struct StateTensor {
  std::string name;  // <parameter>#<state>
  const Parameter* parameter = nullptr;
  TensorPlace place;
  /// Of the ranks that share the parameter's blocks this one keeps and writes the state for all.
  bool is_first = true;
  /// Its values: Parameter::own_shape(), or that of the blocks; of the device, or of the host with
  /// OffloadPlace::host. Undefined where they are in a file.
  Tensor tensor;
  /// Where they are in that case, as which state of which parameter.
  const OffloadedStates* file = nullptr;
  std::size_t parameter_in_file = 0, state_in_file = 0;
  DType dtype_in_file = DType::f32;

  DType dtype() const { return file != nullptr ? dtype_in_file : tensor.dtype(); }
  std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(place.own.count) * size_of(dtype());
  }
  /// Values from `first` of this rank's on, wherever they are. Between steps, of a file by any
  /// thread.
  void read(std::int64_t first, std::span<std::byte> to) const;
  void write(std::int64_t first, std::span<const std::byte> values) const;
};

/// Optimizer::indivisible() of the recipe's optimizer.
std::function<std::int64_t(const Parameter&)> indivisible_pieces(const OptimizerOptions& options);

/// Owns the optimizer's memory (Category::optimizer). Everything runs through kernels::launch, so
/// that the meta device plans exactly this.
class OptimizerSet {
 public:
  /// Allocates the states and sets them to their first values. `store` is allocated with gradients;
  /// it and `mesh` outlive this. With `scaling` gradients are expected to be multiplied with the
  /// decision's loss_scale. With `offload` states live in a file, and memory has what passes
  /// through (Category::offload); or in the host's memory, where they are updated. Noise on
  /// gradients is drawn by `seed`, and so are the roundings of bf16 states. RecipeError for a
  /// pattern of `options` that selects no parameter, and for what cannot be offloaded.
  OptimizerSet(const kernels::KernelCtx& ctx, const OptimizerOptions& options,
               const ParameterStore& store, const Mesh& mesh,
               std::optional<LossScaling> scaling = std::nullopt,
               const std::optional<Offload>& offload = std::nullopt, std::uint64_t seed = 0);

  /// Sets all gradient sinks to zero.
  void zero_grads(const kernels::KernelCtx& ctx) const;

  /// Learning rate of parameters without a group, at `lr_factor` times the recipe's.
  double lr(double lr_factor) const { return lr_ * lr_factor; }
  /// Launches clipping and updates of all parameters at the lr in `scalars`; waits for nothing.
  /// Gradients must be complete sums, of sliced parameters in the own slice; clipping by value
  /// changes them in place (an infinite element becomes the limit, as in PyTorch, but not where the
  /// loss has a scale), clipping by norm does not, noise does. If the norm, or `loss_sum`
  /// (kernels::DecideUpdate) is not finite, parameters, states and steps_taken stay untouched to
  /// the bit.
  void launch_step(const kernels::KernelCtx& ctx, const View& scalars, const View& loss_sum);
  /// Behind launch_step(), where that has only launched what decides: the updates of the host, for
  /// which it waits. Nothing elsewhere.
  void update_on_host(const kernels::KernelCtx& ctx);
  /// What the last launched step decided: kernels::UpdateDecision. The next step writes it anew.
  const Tensor& decision() const { return decision_; }

  /// Waits for launched steps.
  UpdateProgress progress() const;
  /// After a checkpoint's values were written to states(). A scale that never changes is the
  /// recipe's, whatever `progress` says.
  void set_progress(const UpdateProgress& progress);
  /// Of a set that has taken no step.
  UpdateProgress first_progress() const;
  const std::optional<LossScaling>& loss_scaling() const { return scaling_; }
  /// This rank's state tensors, of what it updates, in the order of parameters and, within one, of
  /// Optimizer::states().
  std::span<const StateTensor> states() const { return states_; }
  /// Names of all state tensors of the model, on whichever ranks they are.
  const std::vector<std::string>& state_names() const { return state_names_; }
  /// What the states of so many own elements of a parameter that is trained take in memory, and
  /// what of them the rank that writes them writes.
  struct StateBytes {
    std::uint64_t kept = 0, written = 0;
  };
  StateBytes state_bytes(const Parameter& parameter, std::int64_t elements) const;
  /// Null where no states are in a file.
  const OffloadedStates* offloaded() const {
    return on_host_ ? on_host_->file() : offloaded_.get();
  }
  /// Null where the device updates.
  const HostUpdates* host_updates() const { return on_host_.get(); }
  /// Where values are that ParameterDTypes says are elsewhere; null where all is on the device.
  const ValuesElsewhere* elsewhere() const;

 private:
  /// Optimizer::states() in the types of the recipe.
  std::vector<StateSpec> specs_of(const Parameter& parameter) const;
  /// Of the states of a parameter, whose words are drawn by `seed`.
  kernels::StateRounding rounding_of(const Parameter& parameter, std::uint64_t seed) const;
  void add_states(const kernels::KernelCtx& ctx, OptimizedParameter& optimized, bool in_file);
  void bind(const kernels::KernelCtx& ctx, const OptimizerOptions& options, const Mesh& mesh,
            const std::optional<Offload>& offload);
  /// parameters_, with what of them is not on the device.
  std::vector<StatefulParameter> stateful_parameters() const;

  const ParameterStore* store_;
  std::unique_ptr<Optimizer> optimizer_;
  GradientNorm norm_;
  StateType state_type_;
  double lr_;
  std::optional<double> max_grad_norm_, max_grad_value_;
  std::optional<LossScaling> scaling_;
  std::unique_ptr<HostUpdates> on_host_;  // has the memory of states, or their file
  std::vector<OptimizedParameter> parameters_;
  std::optional<GradientNoise> noise_;
  std::vector<StateTensor> states_;
  std::vector<std::string> state_names_;
  std::unique_ptr<OffloadedStates> offloaded_;  // from which the device updates
  Tensor decision_;                             // of kernels::UpdateDecision's numbers
};

}  // namespace llmtrain::optim
