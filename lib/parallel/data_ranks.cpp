#include "lib/parallel/data_ranks.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"

namespace llmtrain::parallel {

// The walk back meets this last of what was recorded in the units.
class DataRanks::UnitEnd final : public Node {
 public:
  UnitEnd(DataRanks& ranks, ShardedUnits::Range units)
      : Node("data ranks"), ranks_(&ranks), units_(units) {}
  std::vector<Tensor> input_grad(const OpCtx&, std::span<Tensor>) override { return {}; }
  bool has_weight_grad() const override { return true; }
  void weight_grad(const OpCtx& ctx) override {
    // Copies that travel take memory: those of one unit at a time.
    if (ranks_->grad_reduce_) ranks_->arrive(ctx.kernel);
    for (int u = units_.begin; u < units_.end; ++u) {
      ranks_->start(ctx.kernel, ranks_->units_[static_cast<std::size_t>(u)]);
    }
  }

 private:
  DataRanks* ranks_;
  ShardedUnits::Range units_;
};

void DataRanks::set_units(const std::vector<Unit>& units, Completion completion) {
  completion_ = std::move(completion);
  std::set<const ParameterGroup*> seen;
  for (const Unit& unit : units) {
    auto& groups = units_.emplace_back();
    for (const ParameterGroup* group : unit.groups) {
      if (seen.insert(group).second) groups.push_back(group);
    }
  }
}

void DataRanks::enter(const OpCtx& ctx, ShardedUnits::Range units) {
  if (mesh_->data().size() == 1 || ctx.tape == nullptr || !ctx.last_micro_batch) return;
  ctx.tape->record_stop(std::make_unique<UnitEnd>(*this, units));
}

TravellingSum DataRanks::owners_sum(const kernels::KernelCtx& ctx, const Parameter& p,
                                    const Tensor& grad) const {
  return TravellingSum::to_owners(ctx, mesh_->owners(p.holders_of_data()), p, grad, grad_reduce_);
}

TravellingSum DataRanks::replicas_sum(const kernels::KernelCtx& ctx, const Parameter& p,
                                      const Tensor& own) const {
  return TravellingSum::over(ctx, mesh_->replicas(), own, grad_reduce_, p.name());
}

void DataRanks::start_owned(const kernels::KernelCtx& ctx, const ParameterGroup& group) {
  for (const Parameter* p : group.members()) {
    under_way_.push_back(owners_sum(ctx, *p, p->grad()));
  }
}

void DataRanks::start(const kernels::KernelCtx& ctx,
                      std::span<const ParameterGroup* const> groups) {
  struct Small {
    Communicator* data;
    std::vector<const ParameterGroup*> groups;
  };
  std::vector<Small> small;
  for (const ParameterGroup* group : groups) {
    const Parameter& first = *group->members().front();
    if (!started_.insert(group).second || first.shards().gradients) continue;  // by ShardedUnits
    if (completion_) completion_(ctx, *group);
    if (first.is_sliced()) {
      start_owned(ctx, *group);
      continue;
    }
    Communicator& data = mesh_->data(first.holders_of_data());
    if (data.size() > 1 && GradientBucket::takes(group->grad())) {
      const auto same = [&](const Small& of) { return of.data == &data; };
      auto at = std::ranges::find_if(small, same);
      if (at == small.end()) at = small.insert(at, Small{&data, {}});
      at->groups.push_back(group);
      continue;
    }
    under_way_.push_back(
        TravellingSum::over(ctx, data, group->grad(), grad_reduce_, group->name()));
  }
  for (const auto& [data, of] : small) {
    if (of.size() > 1) {
      if (buckets_.size() == kMostBuckets) {
        buckets_.front().arrive(ctx);
        buckets_.pop_front();
      }
      buckets_.emplace_back(ctx, *data, of, grad_reduce_);
    } else {
      under_way_.push_back(
          TravellingSum::over(ctx, *data, of.front()->grad(), grad_reduce_, of.front()->name()));
    }
  }
}

void DataRanks::arrive(const kernels::KernelCtx& ctx) {
  for (TravellingSum& sum : under_way_) sum.arrive(ctx);
  for (GradientBucket& bucket : buckets_) bucket.arrive(ctx);
  under_way_.clear();
  buckets_.clear();
}

void DataRanks::sum_gradients(const kernels::KernelCtx& ctx) {
  if (mesh_->data().size() == 1) return;
  start(ctx, store_->local_groups());
  arrive(ctx);
  started_.clear();
  if (mesh_->replicas().size() == 1) return;
  for (const Parameter* p : store_->local()) {
    if (p->is_sliced()) under_way_.push_back(replicas_sum(ctx, *p, p->own_grad()));
  }
  arrive(ctx);
}

void DataRanks::add_summed(const kernels::KernelCtx& ctx, const Parameter& p,
                           const Tensor& grad) const {
  const Tensor own = p.own_part(grad);
  if (p.is_sliced()) {
    owners_sum(ctx, p, grad).arrive(ctx);
    if (mesh_->replicas().size() > 1) replicas_sum(ctx, p, own).arrive(ctx);
  } else if (mesh_->data().size() > 1) {
    Communicator& data = mesh_->data(p.holders_of_data());
    TravellingSum::over(ctx, data, grad, grad_reduce_, p.name()).arrive(ctx);
  }
  if (p.own_slice().count == 0) return;
  const Tensor& sum = p.own_grad();
  kernels::launch(ctx, kernels::Add{.a = sum, .b = own, .y = sum});
}

void DataRanks::sum(const Tensor& scalars, std::string_view site) const {
  if (mesh_->data().size() > 1) mesh_->data().all_reduce(scalars, ReduceOp::sum, site).wait();
}

void DataRanks::gather_updates() const {
  std::vector<Handle> handles;
  for (const Parameter* p : store_->local()) {
    if (!p->is_sliced() || p->shards().parameters) continue;
    handles.push_back(
        mesh_->owners(p->holders_of_data())
            .all_gather_parts(p->own_compute(), p->compute(), p->slice_counts(), p->name()));
  }
  for (Handle& handle : handles) handle.wait();
}

}  // namespace llmtrain::parallel
