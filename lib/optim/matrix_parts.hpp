#pragma once
/// A matrix of which each rank of Axis::tp has rows or columns, for updates that need all of it.

#include "kernels/kernel.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

/// Of a matrix parameter, or of any one of its experts. Every method that takes a context is
/// collective over the ranks of tp where these have parts.
class MatrixParts {
 public:
  MatrixParts(const Parameter& parameter, const Mesh& mesh);

  /// Else each rank has all of it, and nothing is exchanged.
  bool are_several() const { return ranks_ > 1; }
  /// `value` [n], of this rank's part, becomes the sum over the parts.
  void sum(const kernels::KernelCtx& ctx, const Tensor& value) const;
  /// All of it, in memory of its own, from this rank's part [rows, columns].
  Tensor whole(const kernels::KernelCtx& ctx, const Tensor& part) const;
  /// This rank's part of all of it.
  View own(const View& whole) const { return part_of(whole, rank_); }

 private:
  View part_of(const View& whole, int rank) const;

  Communicator* tp_;
  std::string_view name_;
  int ranks_ = 1, rank_ = 0;
  int split_dim_ = 0;  // 0: rows, 1: columns
  int replicas_ = 1;   // neighbours with the same part
};

}  // namespace llmtrain::optim
