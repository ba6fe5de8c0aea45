#pragma once
/// The global L2 norm of all gradients, in an order that the parameter names alone decide.

#include <vector>

#include "kernels/kernel.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

/// Squared norms per parameter in FP64 (kernels::SquaredNorm), joined by a tree over the sorted
/// names.
class GradientNorm {
 public:
  /// What the meta device answers.
  static constexpr double kPlannedNorm = 1.0;

  /// Keeps one FP64 per parameter of `store`, which must be allocated with gradients and outlive
  /// this.
  GradientNorm(Device& device, const ParameterStore& store);

  /// Reads all gradients once and waits for the result. NaN or infinite when a gradient is, or when
  /// a square leaves the gradient's type. Every gradient must be whole on this rank: InternalError
  /// on a mesh whose axes split parameters.
  double measure(const kernels::KernelCtx& ctx, const Mesh& mesh) const;

 private:
  std::vector<const Parameter*> by_name_;
  Tensor squares_;  // [parameters], FP64
};

}  // namespace llmtrain::optim
