#include "lib/parallel/gradient_tree.hpp"

#include <bit>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::parallel {

GradientTree::GradientTree(Device& device, const ParameterStore& store, int workers,
                           const ParameterGroup* tied, const Tensor& loss_sum)
    : workers_(workers), levels_(std::countr_zero(static_cast<unsigned>(workers))), tied_(tied) {
  require(workers > 0 && std::has_single_bit(static_cast<unsigned>(workers)),
          "{} virtual workers on a rank are no power of two", workers);
  add_sink(device, loss_sum, Category::activations, "loss sum");
  for (const ParameterGroup* group : store.local_groups()) {
    of_group_[group] = all_.size();
    add_sink(device, group->grad(), Category::grads, group->name());
  }
  if (tied == nullptr) return;
  constexpr std::string_view kTag = "head of tied table";
  head_grad_ = device.allocate(tied->grad().shape(), tied->grad().dtype(), Category::grads, kTag);
  add_sink(device, head_grad_, Category::grads, kTag);
}

void GradientTree::add_sink(Device& device, const Tensor& sum, Category category,
                            std::string_view tag) {
  Sink& sink = all_.emplace_back(Sink{.sum = sum, .levels = {}});
  for (int level = 0; level < levels_; ++level) {
    sink.levels.push_back(device.allocate(sum.shape(), sum.dtype(), category, tag));
  }
}

void GradientTree::begin_step(const kernels::KernelCtx& ctx, int micro_batches) {
  require(micro_batches % workers_ == 0, "{} micro-batches for {} virtual workers", micro_batches,
          workers_);
  micro_batches_per_worker_ = micro_batches / workers_;
  for (Sink& sink : all_) sink.worker = 0;
  if (tied_ != nullptr) kernels::launch(ctx, kernels::Fill{.y = head_grad_, .value = 0});
  micro_batches_.clear();
  for (int i = 0; i < micro_batches; ++i) micro_batches_.emplace_back(*this, i);
}

void GradientTree::begin_micro_batch(const kernels::KernelCtx& ctx, int micro_batch) {
  for (std::size_t sink = 0; sink < all_.size(); ++sink) advance(ctx, sink, micro_batch);
}

GradientSinks* GradientTree::sinks(int micro_batch) {
  return &micro_batches_[static_cast<std::size_t>(micro_batch)];
}

const Tensor& GradientTree::MicroBatchSinks::sink(const kernels::KernelCtx& ctx,
                                                  const ParameterGroup& group, GradientPart part) {
  const bool of_tied_head = part == GradientPart::head && &group == tree_->tied_;
  const std::size_t sink = of_tied_head ? tree_->all_.size() - 1 : tree_->of_group_.at(&group);
  return tree_->advance(ctx, sink, number_);
}

void GradientTree::before_loss(const kernels::KernelCtx& ctx, int micro_batch) {
  advance(ctx, 0, micro_batch);
}

const Tensor& GradientTree::advance(const kernels::KernelCtx& ctx, std::size_t at,
                                    int micro_batch) {
  Sink& sink = all_[at];
  const int worker = micro_batch / micro_batches_per_worker_;
  require(worker >= sink.worker, "micro-batch {} adds to a sum that is complete", micro_batch);
  while (sink.worker < worker) complete_worker(ctx, sink);
  return sink.sum;
}

// Counts in binary: a level that has a sum is joined with the one that now comes to it, and is free
// again. The last worker finds all levels full.
void GradientTree::complete_worker(const kernels::KernelCtx& ctx, Sink& sink) const {
  const auto flat = [](const Tensor& tensor) { return tensor.reshape({tensor.numel()}); };
  const Tensor sum = flat(sink.sum);
  std::size_t level = 0;
  for (; (sink.worker >> level & 1) != 0; ++level) {
    kernels::launch(ctx, kernels::Add{.a = sum, .b = flat(sink.levels[level]), .y = sum});
  }
  if (++sink.worker == workers_) return;
  kernels::launch(ctx, kernels::ScaleCast{.x = sum, .y = flat(sink.levels[level]), .scale = 1});
  kernels::launch(ctx, kernels::Fill{.y = sum, .value = 0});
}

void GradientTree::finish(const kernels::KernelCtx& ctx) {
  for (Sink& sink : all_) finish(ctx, sink);
}

void GradientTree::finish(const kernels::KernelCtx& ctx, const ParameterGroup& group) {
  finish(ctx, all_[of_group_.at(&group)]);
}

void GradientTree::finish(const kernels::KernelCtx& ctx, Sink& sink) const {
  while (sink.worker < workers_) complete_worker(ctx, sink);
}

}  // namespace llmtrain::parallel
