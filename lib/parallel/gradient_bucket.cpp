#include "lib/parallel/gradient_bucket.hpp"

#include <fmt/format.h>

#include "kernels/elementwise.hpp"

namespace llmtrain::parallel {

GradientBucket::GradientBucket(const kernels::KernelCtx& ctx, Communicator& group,
                               std::span<const ParameterGroup* const> groups,
                               std::optional<DType> type) {
  std::int64_t numel = 0;
  for (const ParameterGroup* of : groups) numel += of->grad().numel();
  const DType travels = type.value_or(groups.front()->grad().dtype());
  const Tensor bucket =
      ctx.device->allocate({numel, 1}, travels, Category::comm, "bucket of gradients");
  std::int64_t begin = 0;
  for (const ParameterGroup* of : groups) {
    const Tensor& gradient = of->grad();
    const Tensor place = bucket.row_range(begin, gradient.numel()).reshape(gradient.shape());
    kernels::launch(ctx, kernels::ScaleCast{.x = gradient, .y = place});
    places_.push_back({gradient, place});
    begin += gradient.numel();
  }
  handle_ =
      group.all_reduce(bucket, ReduceOp::sum,
                       fmt::format("{} and {} more", groups.front()->name(), groups.size() - 1));
}

void GradientBucket::arrive(const kernels::KernelCtx& ctx) {
  handle_.wait();
  for (const Place& place : places_) {
    kernels::launch(ctx, kernels::ScaleCast{.x = place.travelling, .y = place.gradient});
  }
  places_.clear();
}

}  // namespace llmtrain::parallel
