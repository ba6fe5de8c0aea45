#pragma once
/// Optimizers that are an element-wise rule of kernels/update_rules.hpp and nothing else.

#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

/// States are those that the rule names.
class RuleOptimizer final : public Optimizer {
 public:
  struct Settings {
    kernels::UpdateRule rule;
    double weight_decay = 0;
    kernels::WeightDecay decay = kernels::WeightDecay::in_gradient;
    /// Of the moments whose bias the rule corrects.
    MomentDecays corrected;
    /// Of every element of every state before the first step.
    double initial_state = 0;
  };
  explicit RuleOptimizer(const Settings& settings);

  MomentDecays corrected_decays() const override { return settings_.corrected; }
  std::int64_t divisible(const Parameter&) const override { return 1; }
  std::vector<StateSpec> states(const Parameter& parameter) const override;
  void bind(Device& device, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters) override;
  void update(const kernels::KernelCtx& ctx, const View& decision) const override;

 private:
  Settings settings_;
  std::vector<kernels::RuleTensors> tensors_;
  Tensor table_;  // of kernels::RuleUpdate
};

}  // namespace llmtrain::optim
