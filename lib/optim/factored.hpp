#pragma once
/// Second moments in two factors, as Adafactor and CAME keep them of each matrix.

#include "kernels/block_moments.hpp"
#include "lib/optim/optimizer.hpp"
#include "lib/optim/part_sums.hpp"

namespace llmtrain::optim {

/// A value for each row of a matrix and one for each column; of a vector those of its columns
/// alone, which are its elements.
std::vector<StateSpec> factor_states(const Parameter& parameter, std::string_view row,
                                     std::string_view column);
/// An optimizer that takes one parameter after the other and looks at whole matrices and vectors.
class MatrixOptimizer : public Optimizer {
 public:
  std::int64_t indivisible(const Parameter& parameter) const override;
  void bind(Device& device, const Mesh& mesh, std::span<const OptimizedParameter> parameters) final;
  void update(const kernels::KernelCtx& ctx, const View& decision) const final;

 protected:
  using Optimizer::Optimizer;
  const Mesh& mesh() const { return *mesh_; }

 private:
  /// Of the matrices, or the vector, of one parameter.
  virtual void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                               const View& decision) const = 0;

  const Mesh* mesh_ = nullptr;
};

/// The states of one parameter's factors in the order of factor_states.
struct Factors {
  Tensor rows, columns;  // rows: of matrices alone

  /// Advances both by the squares of `x`, of which each rank of tp has its part: see BlockMoments,
  /// of which `advance` says all but the operands.
  void advance(const kernels::KernelCtx& ctx, const PartSums& parts, const Tensor& x,
               const kernels::BlockMoments& advance) const;
  /// y = x over the root of the moment.
  void scale(const kernels::KernelCtx& ctx, const PartSums& parts, const Tensor& x,
             bool is_gradient, const View& decision, const Tensor& y) const;
};
/// Of p.states from `first` on.
Factors factors_at(const OptimizedParameter& p, std::size_t first);

/// Memory of this rank's part of a parameter, in the master's dtype, for as long as an update.
Tensor step_of(const kernels::KernelCtx& ctx, const Parameter& parameter);
/// Sums of the squares of each of the whole matrices of which x has this rank's part, FP64.
Tensor squares_of(const kernels::KernelCtx& ctx, const PartSums& parts, const Tensor& x);
/// The same of the parameter's masters.
Tensor master_squares_of(const kernels::KernelCtx& ctx, const PartSums& parts,
                         const OptimizedParameter& p);
}  // namespace llmtrain::optim
