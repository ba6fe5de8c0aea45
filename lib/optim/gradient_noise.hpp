#pragma once
/// Noise on gradients, the same whatever the layout.

#include <span>
#include <vector>

#include "kernels/gradient_noise.hpp"
#include "lib/optim/optimizer.hpp"
#include "lib/optim/optimizer_options.hpp"

namespace llmtrain::optim {

/// Normal numbers are drawn by (seed, parameter, update, logical index of the element).
class GradientNoise {
 public:
  /// On the gradients of `parameters`, which outlive this and stay where they are. Keeps a row of a
  /// table per parameter.
  GradientNoise(Device& device, std::span<const OptimizedParameter> parameters,
                const GradientNoiseOptions& options, std::uint64_t seed);
  /// Launches the sum, in place, where `decision` applies: see kernels::GradientNoise.
  void add(const kernels::KernelCtx& ctx, const View& decision) const;

 private:
  double eta_, gamma_;
  std::vector<kernels::NoisyGradient> gradients_;
  Tensor table_;  // of kernels::GradientNoise
};

}  // namespace llmtrain::optim
