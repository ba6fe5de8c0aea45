#pragma once
/// Optimizers whose states are 8 bits an element in blocks with a scale each ("8-bit Optimizers via
/// Block-wise Quantization", arXiv 2110.02861; kernels/dynamic_map.hpp). Blocks are runs of the
/// whole tensor's elements, so that states do not depend on what ranks have of it.

#include <memory>

#include "kernels/eight_bit.hpp"
#include "lib/optim/optimizer.hpp"

namespace llmtrain::optim {

/// Each state of the rule is codes, uint8, and a scale of each block, FP32, named `<state>_scale`.
class EightBitOptimizer final : public Optimizer {
 public:
  struct Settings {
    kernels::EightBitRule rule;
    double weight_decay = 0;
    kernels::WeightDecay decay = kernels::WeightDecay::before_step;
    /// Parameters with fewer elements are updated by `others`, which has the same rule.
    std::int64_t min_size = 0;
    std::unique_ptr<Optimizer> others;
  };
  explicit EightBitOptimizer(Settings settings);

  MomentDecays corrected_decays() const override { return settings_.others->corrected_decays(); }
  std::int64_t indivisible(const Parameter& parameter) const override;
  std::int64_t divisible(const Parameter& parameter) const override;
  /// RecipeError, with the nearest layout that does not, if the parameter's placement cuts blocks.
  std::vector<StateSpec> states(const Parameter& parameter) const override;
  void bind(Device& device, const Mesh& mesh,
            std::span<const OptimizedParameter> parameters) override;
  void update(const kernels::KernelCtx& ctx, const View& decision) const override;

 private:
  bool in_eight_bits(const Parameter& parameter) const {
    return parameter.global_shape().numel() >= settings_.min_size;
  }

  Settings settings_;
  std::vector<OptimizedParameter> others_;
  std::vector<kernels::EightBitTensors> tensors_;
  Tensor table_;  // of kernels::EightBitUpdate
};

/// The recipe key `min_8bit_size`.
struct MinSizeKey : recipe::Key<std::int64_t> {
  explicit MinSizeKey(recipe::Section* section)
      : recipe::Key<std::int64_t>(section, "min_8bit_size", 4096,
                                  "parameters with fewer elements keep whole states",
                                  recipe::at_least(0)) {}
};

}  // namespace llmtrain::optim
