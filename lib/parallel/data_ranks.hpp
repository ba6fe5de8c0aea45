#pragma once
/// What travels between data ranks: gradients to whoever updates by them, and what was updated back
/// to all.

#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "lib/autograd/tape.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/parallel/companions.hpp"
#include "lib/parallel/gradient_bucket.hpp"
#include "lib/parallel/sharded_units.hpp"
#include "lib/parallel/travelling_sum.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::parallel {

class DataRanks {
 public:
  /// Store and mesh outlive this. Gradients travel in `grad_reduce`, without it in their own type.
  DataRanks(const ParameterStore& store, const Mesh& mesh, std::optional<DType> grad_reduce)
      : store_(&store), mesh_(&mesh), grad_reduce_(grad_reduce) {}

  /// Called before a group's gradient leaves: the sum of this rank's micro-batches is in it then.
  using Completion = std::function<void(const kernels::KernelCtx&, const ParameterGroup&)>;
  /// The units of ShardedUnits, whose gradients go one by one while the backward is at work on the
  /// next.
  void set_units(const std::vector<Unit>& units, Completion completion = nullptr);
  /// Before the operations of some units. In the last micro-batch of a step the tape of `ctx` sends
  /// their gradients on their way behind the last weight part. Collective over the data ranks, and
  /// so are the others.
  void enter(const OpCtx& ctx, ShardedUnits::Range units);
  /// Makes gradients, of sliced parameters the own slices, sums over all ranks that share the
  /// step's samples: those that are under way, and all others. What ShardedUnits has summed up over
  /// the owners goes over their replicas alone.
  void sum_gradients(const kernels::KernelCtx& ctx);
  /// The same of a tensor of its own for the gradient of `parameter`, and adds it to that.
  void add_summed(const kernels::KernelCtx& ctx, const Parameter& parameter,
                  const Tensor& grad) const;
  void sum(const Tensor& scalars, std::string_view site) const;
  /// Gives all data ranks what each of them has updated.
  void gather_updates(const kernels::KernelCtx& ctx) const;

 private:
  class UnitEnd;
  struct Gradient {
    Tensor tensor;
    std::string_view name;
  };
  /// Sums the gradients of groups over their owners, or of what is not sliced over all, small ones
  /// together.
  void start(const kernels::KernelCtx& ctx, std::span<const ParameterGroup* const> groups);
  void sum_over_replicas(const kernels::KernelCtx& ctx,
                         std::span<const ParameterGroup* const> groups);
  void sum_together(const kernels::KernelCtx& ctx, const Companions<Gradient>& gradients);
  void sum_slices_together(const kernels::KernelCtx& ctx,
                           const Companions<const Parameter*>& parameters);
  void make_room(const kernels::KernelCtx& ctx);
  TravellingSum owners_sum(const kernels::KernelCtx& ctx, const Parameter& parameter,
                           const Tensor& grad) const;
  TravellingSum sum_over(const kernels::KernelCtx& ctx, Communicator& group,
                         const Gradient& gradient) const;
  void arrive(const kernels::KernelCtx& ctx);

  const ParameterStore* store_;
  const Mesh* mesh_;
  std::optional<DType> grad_reduce_;
  Completion completion_;
  /// By unit; a group that is in several of them is in the first, whose backward is the last.
  std::vector<std::vector<const ParameterGroup*>> units_;
  std::set<const ParameterGroup*> started_;
  std::vector<TravellingSum> under_way_;
  /// Copies of so many units' small tensors are under way at a time: enough for the links.
  static constexpr std::size_t kMostUnits = 4;
  std::deque<GradientBucket> buckets_;
};

}  // namespace llmtrain::parallel
