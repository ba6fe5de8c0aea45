#include "lib/parallel/travelling_sum.hpp"

#include "kernels/elementwise.hpp"

namespace llmtrain::parallel {

void add_sum(const kernels::KernelCtx& ctx, const Tensor& sum, const Tensor& total) {
  if (sum.dtype() == total.dtype()) {
    kernels::launch(ctx, kernels::Add{.a = total, .b = sum, .y = total});
  } else {
    kernels::launch(ctx, kernels::ScaleCast{.x = sum, .y = total, .accumulate = true});
  }
}

TravellingSum::TravellingSum(const kernels::KernelCtx& ctx, const Tensor& grad,
                             std::optional<DType> type)
    : sent_(grad) {
  if (type.value_or(grad.dtype()) == grad.dtype()) return;
  sent_ = ctx.device->allocate(grad.shape(), *type, Category::comm, "gradient that travels");
  kernels::launch(ctx, kernels::ScaleCast{.x = grad, .y = sent_});
}

TravellingSum TravellingSum::over(const kernels::KernelCtx& ctx, Communicator& group,
                                  const Tensor& grad, std::optional<DType> type,
                                  std::string_view name) {
  TravellingSum sum(ctx, grad, type);
  sum.target_ = grad;
  sum.sum_ = sum.sent_;
  sum.handle_ = group.all_reduce(sum.sent_, ReduceOp::sum, name);
  return sum;
}

TravellingSum TravellingSum::to_owners(const kernels::KernelCtx& ctx, Communicator& owners,
                                       const Parameter& p, const Tensor& grad,
                                       std::optional<DType> type) {
  TravellingSum sum(ctx, grad, type);
  sum.target_ = p.own_part(grad);
  sum.sum_ = p.own_part(sum.sent_);
  sum.handle_ = owners.reduce_scatter_parts(sum.sent_, sum.sum_, p.slice_counts(), p.name());
  return sum;
}

void TravellingSum::arrive(const kernels::KernelCtx& ctx) {
  handle_.wait();
  if (sum_.dtype() != target_.dtype() && sum_.numel() > 0) {
    kernels::launch(ctx, kernels::ScaleCast{.x = sum_, .y = target_});
  }
  sent_ = sum_ = {};
}

void TravellingSum::arrive_onto(const kernels::KernelCtx& ctx, const Tensor& total) {
  handle_.wait();
  if (sum_.numel() > 0) add_sum(ctx, sum_, total);
}

}  // namespace llmtrain::parallel
