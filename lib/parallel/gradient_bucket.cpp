#include "lib/parallel/gradient_bucket.hpp"

#include "kernels/elementwise.hpp"
#include "lib/parallel/slice_layout.hpp"
#include "lib/parallel/travelling_sum.hpp"

namespace llmtrain::parallel {

GradientBucket GradientBucket::over(const kernels::KernelCtx& ctx, Communicator& group,
                                    std::span<const Tensor> gradients, std::optional<DType> type,
                                    std::string_view first) {
  GradientBucket bucket;
  std::int64_t numel = 0;
  for (const Tensor& gradient : gradients) numel += gradient.numel();
  const DType travels = type.value_or(gradients.front().dtype());
  bucket.message_ =
      ctx.device->allocate({numel, 1}, travels, Category::comm, "bucket of gradients");
  std::int64_t begin = 0;
  for (const Tensor& gradient : gradients) {
    const Tensor place =
        bucket.message_.row_range(begin, gradient.numel()).reshape(gradient.shape());
    kernels::launch(ctx, kernels::ScaleCast{.x = gradient, .y = place});
    bucket.places_.push_back({gradient, place});
    begin += gradient.numel();
  }
  bucket.handle_ =
      group.all_reduce(bucket.message_, ReduceOp::sum, message_site(first, gradients.size()));
  return bucket;
}

GradientBucket GradientBucket::to_owners(const kernels::KernelCtx& ctx, Communicator& owners,
                                         std::span<const Parameter* const> parameters,
                                         std::optional<DType> type) {
  GradientBucket bucket;
  const SliceLayout layout(parameters, owners.size(), owners.rank());
  const DType travels = type.value_or(parameters.front()->grad().dtype());
  const Tensor& message = bucket.message_ =
      ctx.device->allocate({layout.elements}, travels, Category::comm, "bucket of gradients");
  for (const SliceLayout::Place& at : layout.places) {
    const Tensor& whole = at.parameter->grad();
    const Tensor gradient =
        whole.reshape({whole.numel()}).columns(at.of_box.first, at.of_box.count);
    const Tensor place = message.columns(at.begin, at.of_box.count);
    kernels::launch(ctx, kernels::ScaleCast{.x = gradient, .y = place});
    if (at.owner == owners.rank()) bucket.places_.push_back({gradient, place, at.parameter});
  }
  bucket.handle_ = owners.reduce_scatter_parts(
      message, message.columns(layout.own_begin, layout.own_count), layout.counts, layout.site);
  return bucket;
}

void GradientBucket::arrive(const kernels::KernelCtx& ctx) {
  handle_.wait();
  for (const Place& place : places_) {
    kernels::launch(ctx, kernels::ScaleCast{.x = place.travelling, .y = place.gradient});
  }
  places_.clear();
  message_ = {};
}

void GradientBucket::arrive_onto_own(const kernels::KernelCtx& ctx) {
  handle_.wait();
  for (const Place& place : places_) {
    const Tensor& total = place.parameter->own_grad();
    add_sum(ctx, place.travelling.reshape(total.shape()), total);
  }
  places_.clear();
  message_ = {};
}

}  // namespace llmtrain::parallel
