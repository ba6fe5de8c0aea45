#pragma once
/// The chosen optimizer over all parameters: its state tensors, parameter groups and clipping.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/mesh/mesh.hpp"
#include "lib/optim/gradient_norm.hpp"
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
  /// False: the norm is NaN or infinite and nothing was updated.
  bool finite = true;
};

/// One state tensor, as a checkpoint sees it.
struct StateTensor {
  std::string name;  // <parameter>#<state>
  const Parameter* parameter = nullptr;
  Tensor tensor;  // the parameter's local shape
};

/// Owns the optimizer's memory (Category::optimizer). Everything runs through kernels::launch, so
/// that the meta device plans exactly this.
class OptimizerSet {
 public:
  /// Allocates the states and sets them to zero. `store` is allocated with gradients and outlives
  /// this. RecipeError for a pattern of `options` that selects no parameter.
  OptimizerSet(const kernels::KernelCtx& ctx, const OptimizerOptions& options,
               const ParameterStore& store);

  /// Sets all gradient sinks to zero.
  void zero_grads(const kernels::KernelCtx& ctx) const;

  /// Clips and updates all parameters at `lr_factor` times the recipe's lr. Gradients must be
  /// complete sums; clipping by value changes them in place (an infinite element becomes the limit,
  /// as in PyTorch), clipping by norm does not. If the norm is not finite, parameters, states and
  /// steps_taken() stay untouched to the bit. Waits for the norm.
  StepResult step(const kernels::KernelCtx& ctx, const Mesh& mesh, double lr_factor);

  /// Updates so far: Adam's t. Skipped steps do not count.
  std::int64_t steps_taken() const { return steps_taken_; }
  /// After a checkpoint's values were written to states().
  void set_steps_taken(std::int64_t steps);
  /// All state tensors, in the order of parameters and, within one, of Optimizer::states().
  std::span<const StateTensor> states() const { return states_; }

 private:
  struct Slot {
    const Parameter* parameter;
    ParameterSettings settings;
    std::vector<Tensor> states;
  };

  double clip_scale(double grad_norm) const;

  const ParameterStore* store_;
  std::unique_ptr<Optimizer> optimizer_;
  GradientNorm norm_;
  double lr_;
  std::optional<double> max_grad_norm_, max_grad_value_;
  std::vector<Slot> slots_;
  std::vector<StateTensor> states_;
  std::int64_t steps_taken_ = 0;
};

}  // namespace llmtrain::optim
