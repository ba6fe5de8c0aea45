#include "lib/optim/matrix_parts.hpp"

#include <cstddef>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

MatrixParts::MatrixParts(const Parameter& parameter, const Mesh& mesh)
    : tp_(&mesh.axis(Axis::tp)), name_(parameter.name()) {
  const AxisPlacement& placement = parameter.placement()[Axis::tp];
  const int outer_dims = parameter.global_shape().rank() - 2;
  if (placement.split_dim < outer_dims || mesh.size(Axis::tp) == 1) return;
  require(!placement.uneven, "{}: a matrix in uneven parts", name_);
  ranks_ = mesh.size(Axis::tp);
  rank_ = mesh.index(Axis::tp);
  split_dim_ = placement.split_dim - outer_dims;
  replicas_ = placement.replicas;
}

void MatrixParts::sum(const kernels::KernelCtx& ctx, const Tensor& value) const {
  if (!are_several()) return;
  if (rank_ % replicas_ != 0) launch(ctx, kernels::Fill{.y = value, .value = 0});
  tp_->all_reduce(value, ReduceOp::sum, name_).wait();
}

Tensor MatrixParts::whole(const kernels::KernelCtx& ctx, const Tensor& part) const {
  if (!are_several()) return part;
  const auto scratch = [&](const Shape& shape, std::string_view tag) {
    return ctx.device->allocate(shape, part.dtype(), Category::workspace, tag);
  };
  const std::int64_t rows = part.view().rows(), cols = part.view().cols();
  const Tensor parts = scratch({ranks_ * rows, cols}, "parts of a matrix");
  tp_->all_gather(part, parts, name_).wait();
  const int count = ranks_ / replicas_;
  const Tensor whole = scratch(
      {rows * (split_dim_ == 0 ? count : 1), cols * (split_dim_ == 1 ? count : 1)}, "whole matrix");
  for (int rank = 0; rank < ranks_; rank += replicas_) {
    launch(ctx, kernels::ScaleCast{.x = parts.row_range(rank * rows, rows),
                                   .y = part_of(whole.view(), rank)});
  }
  return whole;
}

View MatrixParts::part_of(const View& whole, int rank) const {
  if (!are_several()) return whole;
  const int count = ranks_ / replicas_, index = rank / replicas_;
  View part = whole;
  std::int64_t first = 0;
  if (split_dim_ == 0) {
    part.shape = {whole.rows() / count, whole.cols()};
    first = index * part.rows() * whole.row_stride;
  } else {
    part.shape = {whole.rows(), whole.cols() / count};
    first = index * part.cols();
  }
  part.data = whole.as<std::byte>() + static_cast<std::size_t>(first) * size_of(whole.dtype);
  return part;
}

}  // namespace llmtrain::optim
