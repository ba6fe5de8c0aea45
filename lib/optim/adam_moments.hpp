#pragma once
/// The update with two moments that Adam and AdamW share; they differ in where the decay goes.

#include "lib/optim/decay_order.hpp"
#include "lib/optim/optimizer.hpp"
#include "lib/optim/update_options.hpp"

namespace llmtrain::optim {

/// What is kept of the means in an update, and weight decay, where a recipe does not say.
struct AdamDefaults {
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999;
};

struct AdamOptions : UpdateOptions {
  explicit AdamOptions(const AdamDefaults& defaults)
      : UpdateOptions(1e-3),
        betas(this, "betas", {defaults.beta1, defaults.beta2},
              "decay of the mean of the gradient and of its square",
              recipe::at_least(0) & recipe::below(1) & recipe::length(2)),
        weight_decay(this, "weight_decay", defaults.weight_decay, "weight decay",
                     recipe::at_least(0)) {}

  recipe::Key<std::vector<double>> betas;
  recipe::Key<double> eps{this, "eps", 1e-8, "added to the root of the second moment",
                          recipe::above(0)};
  recipe::Key<double> weight_decay;
};

/// Of an optimizer whose decay is decoupled, and comes before the step as its authors have it.
struct DecoupledAdamOptions : AdamOptions {
  using AdamOptions::AdamOptions;
  DecayOrderKey decay_order{this};
};

/// States `m` and `v`; kernels::AdamUpdate has the formula.
class AdamMoments final : public Optimizer {
 public:
  AdamMoments(const AdamOptions& options, kernels::WeightDecay decay);

  MomentDecays corrected_decays() const override { return {beta1_, beta2_}; }
  std::int64_t divisible(const Parameter&) const override { return 1; }
  std::vector<StateSpec> states(const Parameter& parameter) const override;
  void bind(Device& device, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters) override;
  void update(const kernels::KernelCtx& ctx, const View& decision) const override;

 private:
  double beta1_, beta2_, eps_;
  kernels::WeightDecay decay_;
  std::vector<kernels::AdamTensors> tensors_;
  Tensor table_;  // of kernels::AdamUpdate
};

}  // namespace llmtrain::optim
