#pragma once
/// Sums and maxima over the rows or the columns of matrices of which each rank of Axis::tp has
/// some.

#include "kernels/factored.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::optim {

/// A parameter as matrices of its last two dims (experts are several), a vector as one row, of
/// which this rank updates `here`. Every method that takes a tensor is collective over the ranks of
/// tp where the parameter is divided; they own the same matrices.
class PartSums {
 public:
  PartSums(const Parameter& parameter, const Mesh& mesh);

  const kernels::Matrices& here() const { return here_; }
  /// Of a whole matrix.
  std::int64_t all_rows() const { return all_rows_; }
  std::int64_t all_columns() const { return all_columns_; }

  /// `values`, each of this rank's rows, columns or both of a matrix, become those of all.
  void over_rows(const kernels::KernelCtx& ctx, const Tensor& values, ReduceOp op) const;
  void over_columns(const kernels::KernelCtx& ctx, const Tensor& values, ReduceOp op) const;
  void over_all(const kernels::KernelCtx& ctx, const Tensor& values) const;

 private:
  void reduce(const kernels::KernelCtx& ctx, const Tensor& values, ReduceOp op) const;

  Communicator* tp_;
  std::string_view name_;
  kernels::Matrices here_;
  std::int64_t all_rows_ = 1, all_columns_ = 1;
  bool divided_rows_ = false, divided_columns_ = false;
  bool repeats_ = false;  // a rank before this one has the same part
};

}  // namespace llmtrain::optim
