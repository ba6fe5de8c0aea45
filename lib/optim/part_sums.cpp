#include "lib/optim/part_sums.hpp"

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

PartSums::PartSums(const Parameter& parameter, const Mesh& mesh)
    : tp_(&mesh.axis(Axis::tp)), name_(parameter.name()) {
  const Shape& box = parameter.box().shape;
  const int rank = box.rank(), column_dim = rank - 1, row_dim = rank - 2;
  here_.columns = box[column_dim];
  all_columns_ = parameter.global_shape()[column_dim];
  if (rank > 1) {
    here_.rows = box[row_dim];
    all_rows_ = parameter.global_shape()[row_dim];
  }
  const std::int64_t each = here_.rows * here_.columns, own = parameter.own_place().own.count;
  require(own % each == 0, "{}: a slice of {} elements cuts matrices of {}", name_, own, each);
  here_.count = own / each;
  const AxisPlacement& placement = parameter.placement()[Axis::tp];
  if (mesh.size(Axis::tp) == 1) return;
  divided_rows_ = rank > 1 && placement.split_dim == row_dim;
  divided_columns_ = placement.split_dim == column_dim;
  repeats_ = mesh.index(Axis::tp) % placement.replicas != 0;
}

void PartSums::over_rows(const kernels::KernelCtx& ctx, const Tensor& values, ReduceOp op) const {
  if (divided_rows_) reduce(ctx, values, op);
}

void PartSums::over_columns(const kernels::KernelCtx& ctx, const Tensor& values,
                            ReduceOp op) const {
  if (divided_columns_) reduce(ctx, values, op);
}

void PartSums::over_all(const kernels::KernelCtx& ctx, const Tensor& values) const {
  if (divided_rows_ || divided_columns_) reduce(ctx, values, ReduceOp::sum);
}

void PartSums::reduce(const kernels::KernelCtx& ctx, const Tensor& values, ReduceOp op) const {
  if (repeats_ && op == ReduceOp::sum) launch(ctx, kernels::Fill{.y = values, .value = 0});
  tp_->all_reduce(values, op, name_).wait();
}

}  // namespace llmtrain::optim
