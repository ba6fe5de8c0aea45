#pragma once
/// Sums over the micro-batches of a step in one order for every layout (run.determinism: layout).

#include <map>
#include <vector>

#include "lib/autograd/op_ctx.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

/// The micro-batches of a step are the work of virtual workers, as many neighbours for each. What
/// those of one worker make adds up one after the other, and the workers' sums join by pairs of
/// neighbours, level by level. This rank has consecutive workers, a power of two of them: their
/// subtree is joined here, and the tree above them by the sums over the data ranks
/// (Communicator::all_reduce), so that neither the number of data ranks nor the order of a
/// pipeline's actions shows in the bits. Beside a sink there is one buffer per level. (Virtual
/// workers after EasyScale, arXiv 2208.14228.)
class GradientTree {
 public:
  /// Gradients are those of `store`'s groups, which are allocated whole. `tied`: the table to whose
  /// gradient this rank's head and its embedding both add, of which the head's part gets a sink of
  /// its own; or null. `loss_sum` FP64. All outlive this.
  GradientTree(Device& device, const ParameterStore& store, int workers, const ParameterGroup* tied,
               const Tensor& loss_sum);

  /// Before a step of so many micro-batches on this rank, a multiple of the workers; its sinks,
  /// but for the head's own, are zero.
  void begin_step(const kernels::KernelCtx& ctx, int micro_batches);
  /// Before a micro-batch whose operations all come between those of the one before and those of the
  /// next: sums of the workers before its own join now, and its own launches, which are then those of
  /// every other micro-batch, can be recorded once for all of them.
  void begin_micro_batch(const kernels::KernelCtx& ctx, int micro_batch);
  /// Where a micro-batch's operations add. Those that add to one sink come in ascending order of
  /// micro-batches, whatever other sinks are at.
  GradientSinks* sinks(int micro_batch);
  /// Before the loss of a micro-batch is added to `loss_sum`.
  void before_loss(const kernels::KernelCtx& ctx, int micro_batch);
  /// After the last micro-batch: sinks, or that of one group, hold the sums of this rank.
  void finish(const kernels::KernelCtx& ctx);
  void finish(const kernels::KernelCtx& ctx, const ParameterGroup& group);

  /// The tied table, or null, and the head's part of its gradient.
  const ParameterGroup* tied() const { return tied_; }
  const Tensor& head_grad() const { return head_grad_; }

 private:
  struct Sink {
    Tensor sum;
    std::vector<Tensor> levels;  // sums of 1, 2, 4, .. workers that wait for their neighbours
    int worker = 0;              // whose sum is being made
  };
  class MicroBatchSinks final : public GradientSinks {
   public:
    MicroBatchSinks(GradientTree& tree, int micro_batch) : tree_(&tree), number_(micro_batch) {}
    const Tensor& sink(const kernels::KernelCtx& ctx, const ParameterGroup& group,
                       GradientPart part) override;

   private:
    GradientTree* tree_;
    int number_;
  };

  void add_sink(Device& device, const Tensor& sum, Category category, std::string_view tag);
  /// Sums of the workers before that of `micro_batch` are complete; the sink, for more.
  const Tensor& advance(const kernels::KernelCtx& ctx, std::size_t sink, int micro_batch);
  void complete_worker(const kernels::KernelCtx& ctx, Sink& sink) const;
  void finish(const kernels::KernelCtx& ctx, Sink& sink) const;

  int workers_, levels_;
  int micro_batches_per_worker_ = 0;
  const ParameterGroup* tied_;
  Tensor head_grad_;
  std::vector<Sink> all_;  // of the loss, of the groups in the store's order, of a tied head
  std::map<const ParameterGroup*, std::size_t> of_group_;
  std::vector<MicroBatchSinks> micro_batches_;
};

}  // namespace llmtrain::parallel
