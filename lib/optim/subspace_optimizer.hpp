#pragma once
/// Optimizers whose moments of a matrix live in a subspace of its rows or its columns.

#include "lib/optim/matrices_and_others.hpp"
#include "lib/optim/matrix_parts.hpp"

namespace llmtrain::optim {

/// Of one matrix g [m, n]: g is projected from the right, by a projector [r, n] on [m, r], or from
/// the left, by [m, r] on [r, n]. Its vectors are those of the shorter side.
struct Subspace {
  bool right = false;
  Shape projector, inside;

  std::int64_t dims() const { return right ? projector[0] : projector[1]; }
  /// With P of these vectors, to = g P^T, or P^T g.
  void project(const kernels::KernelCtx& ctx, const View& g, const View& vectors,
               const View& to) const;
  /// to = x P, or P x, or with `accumulate` += that.
  void take_back(const kernels::KernelCtx& ctx, const View& x, const View& vectors, const View& to,
                 bool accumulate = false) const;
};

/// Updates matrices one by one, each whole: ranks of Axis::tp that have parts of one put their
/// gradients together, compute alike and keep all of its states but element-wise ones.
class SubspaceOptimizer : public MatricesAndOthers {
 protected:
  struct Settings {
    /// Of a smaller matrix all dims.
    std::int64_t rank = 1;
    /// Which side a square matrix is projected from.
    bool square_from_right = false;
    /// On the step of a matrix, which p gains.
    double factor = -1;
    kernels::WeightDecay decay = kernels::WeightDecay::before_step;
  };
  SubspaceOptimizer(const Settings& settings, std::unique_ptr<Optimizer> others)
      : MatricesAndOthers(std::move(others)), settings_(settings) {}

  struct WholeMatrix {
    const Subspace& of;
    const MatrixParts& parts;
    /// Its gradient, in memory that the update may change.
    Tensor g;
    /// In the order of matrix_states(), this matrix' alone.
    std::vector<Tensor> states;
  };
  /// g becomes the step; advances the states. Where the decision does not apply, g is of no use and
  /// the states stay.
  virtual void step_matrix(const kernels::KernelCtx& ctx, const WholeMatrix& matrix,
                           const View& decision) const = 0;
  /// Adds to the clipped gradient of this rank's part of p what earlier updates left of theirs.
  virtual void add_leftover(const kernels::KernelCtx&, const OptimizedParameter&,
                            const Tensor&) const {}

  /// projector, m and v.
  std::vector<StateSpec> matrix_states(const Parameter& parameter) const override;
  void update_matrices(const kernels::KernelCtx& ctx, const OptimizedParameter& p,
                       const View& decision) const final;

  Subspace subspace_of(const Parameter& parameter) const;

 private:
  Settings settings_;
};

}  // namespace llmtrain::optim
