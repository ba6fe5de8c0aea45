#pragma once
/// What the global L2 norm of all gradients is made of, in an order that the parameter names alone
/// decide.

#include <vector>

#include "kernels/kernel.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

/// Squared norms per parameter in FP64 (kernels::SquaredNorm), sorted by name;
/// kernels::DecideUpdate joins them by a tree.
class GradientNorm {
 public:
  /// Keeps one FP64 and a row of a table per parameter of `store`, which must be allocated with
  /// gradients and outlive this.
  GradientNorm(Device& device, const ParameterStore& store);

  /// Launches what reads all gradients once; FP64 [parameters]. Squares are NaN or infinite where a
  /// gradient is, or where a square leaves the gradient's type. Every gradient must be whole on
  /// this rank: InternalError on a mesh whose axes split parameters.
  const Tensor& squares(const kernels::KernelCtx& ctx, const Mesh& mesh) const;

 private:
  std::vector<View> gradients_;  // by the names of their parameters
  Tensor table_;                 // of kernels::SquaredNorm
  Tensor squares_;               // [parameters], FP64
};

}  // namespace llmtrain::optim
