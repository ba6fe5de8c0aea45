#pragma once
/// What the global L2 norm of all gradients is made of, in an order that the parameter names alone
/// decide.

#include <vector>

#include "kernels/kernel.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

/// Squared norms per parameter of the model in FP64 (kernels::SquaredNorm), sorted by name;
/// kernels::DecideUpdate joins them by a tree. Each element of a logical tensor counts once, on
/// whichever ranks it lies. Of sliced parameters each rank sums its own slice, in runs of blocks
/// that are subtrees of the whole gradient's sum (kernels::JoinSquaredNorms): same bits.
class GradientNorm {
 public:
  /// Keeps one FP64 and a row of a table per parameter of `store`, which must be allocated with
  /// gradients and, like the mesh, outlive this.
  GradientNorm(Device& device, const ParameterStore& store, const Mesh& mesh);

  /// Launches what reads all gradients once; FP64 [parameters], the same on all ranks. Squares are
  /// NaN or infinite where a gradient is, or where a square leaves the gradient's type. Gradients
  /// are sums over the data ranks already. Collective over the ranks that hold one model, and the
  /// data ranks where parameters are sliced.
  const Tensor& squares(const kernels::KernelCtx& ctx) const;

 private:
  const Mesh* mesh_;
  bool sliced_ = false;
  std::vector<View> gradients_;  // by the names of their parameters; empty where others count
  Tensor table_;                 // of kernels::SquaredNorm
  Tensor squares_;               // [parameters], FP64
  // Of sliced parameters `gradients_` are runs.
  Tensor runs_, levels_, first_runs_;  // FP64, int32 [runs]; int32 [parameters + 1]
};

}  // namespace llmtrain::optim
