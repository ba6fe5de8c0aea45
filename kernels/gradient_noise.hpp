#pragma once
/// Noise on gradients ("Adding Gradient Noise Improves Learning for Very Deep Networks", arXiv
/// 1511.06807).

#include "kernels/optimizer.hpp"
#include "lib/base/plain_normal.hpp"

namespace llmtrain::kernels {

/// A gradient, FP32 | FP64 [n], and its elements' random words, which are counted as those of
/// stochastic rounding.
struct NoisyGradient {
  View to;
  StochasticRounding words;
};

/// g += z sqrt(eta / (1 + t)^gamma) / grad_scale in the t-th update, counted from 0, so that what
/// an update makes of g, grad_scale g, has noise of the variance eta / (1 + t)^gamma in it. z is
/// the standard normal number (plain_normal()) of the element's word of step t; sums are FP64 and
/// rounded once. t and grad_scale are the decision's; where it does not apply, nothing is written.
/// One launch for a list of gradients of one dtype.
struct GradientNoise {
  static constexpr std::string_view name = "gradient_noise";
  /// A row of the table.
  struct Row {
    ListPlace place;
    void* gradient;
    StochasticRounding words;
  };
  static std::vector<Row> rows(std::span<const NoisyGradient> gradients);

  std::span<const NoisyGradient> gradients;
  /// rows(gradients) in the device's memory, uint8; may be absent for a list of one.
  View table;
  View decision;
  double eta = 0, gamma = 0;
  void check() const;
  Cost cost() const;
  DType dtype() const { return gradients.front().to.dtype; }
  std::array<std::int64_t, 4> sizes() const;
  std::uint64_t workspace_bytes(int) const { return 0; }

  static constexpr std::uint64_t step(const UpdateDecision& d) {
    return static_cast<std::uint64_t>(d.updates) - 1;
  }
  /// Of what g gets. Constexpr, so that device code has the very same operations.
  constexpr double deviation(const UpdateDecision& d) const {
    return std::sqrt(eta) * plain_exp(-0.5 * gamma * plain_log(d.updates)) / d.grad_scale;
  }
  template <class T>
  static constexpr T noisy(T g, double deviation, double z) {
    return static_cast<T>(static_cast<double>(g) + deviation * z);
  }
};

}  // namespace llmtrain::kernels
