#include "lib/parallel/data_ranks.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "lib/parallel/parameter_gather.hpp"
#include "lib/parallel/slice_layout.hpp"

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

TravellingSum DataRanks::sum_over(const kernels::KernelCtx& ctx, Communicator& group,
                                  const Gradient& gradient) const {
  return TravellingSum::over(ctx, group, gradient.tensor, grad_reduce_, gradient.name);
}

void DataRanks::sum_together(const kernels::KernelCtx& ctx, const Companions<Gradient>& gradients) {
  for (const auto& [group, of] : gradients) {
    if (of.size() == 1) {
      under_way_.push_back(sum_over(ctx, *group, of.front()));
      continue;
    }
    std::vector<Tensor> tensors;
    for (const Gradient& gradient : of) tensors.push_back(gradient.tensor);
    make_room(ctx);
    buckets_.push_back(GradientBucket::over(ctx, *group, tensors, grad_reduce_, of.front().name));
  }
}

void DataRanks::sum_slices_together(const kernels::KernelCtx& ctx,
                                    const Companions<const Parameter*>& parameters) {
  for (const auto& [owners, of] : parameters) {
    if (of.size() == 1) {
      under_way_.push_back(owners_sum(ctx, *of.front(), of.front()->grad()));
    } else {
      make_room(ctx);
      buckets_.push_back(GradientBucket::to_owners(ctx, *owners, of, grad_reduce_));
    }
  }
}

void DataRanks::make_room(const kernels::KernelCtx& ctx) {
  if (buckets_.size() < kMostUnits) return;
  buckets_.front().arrive(ctx);
  buckets_.pop_front();
}

void DataRanks::start(const kernels::KernelCtx& ctx,
                      std::span<const ParameterGroup* const> groups) {
  Companions<Gradient> small;
  Companions<const Parameter*> small_slices;
  for (const ParameterGroup* group : groups) {
    const Parameter& first = *group->members().front();
    if (!started_.insert(group).second || first.shards().gradients) continue;  // by ShardedUnits
    if (completion_) completion_(ctx, *group);
    if (!first.is_sliced()) {
      Communicator& data = mesh_->data(first.holders_of_data());
      const Gradient gradient{group->grad(), group->name()};
      if (data.size() > 1 && travels_with_others(gradient.tensor)) {
        small.add(data, gradient);
      } else {
        under_way_.push_back(sum_over(ctx, data, gradient));
      }
      continue;
    }
    for (const Parameter* p : group->members()) {
      if (travels_with_others(p->grad())) {
        small_slices.add(mesh_->owners(p->holders_of_data()), p);
      } else {
        under_way_.push_back(owners_sum(ctx, *p, p->grad()));
      }
    }
  }
  sum_together(ctx, small);
  sum_slices_together(ctx, small_slices);
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
  for (const auto& unit : units_) sum_over_replicas(ctx, unit);
  arrive(ctx);
}

// Replicas have the same slices.
void DataRanks::sum_over_replicas(const kernels::KernelCtx& ctx,
                                  std::span<const ParameterGroup* const> groups) {
  Companions<Gradient> small;
  for (const ParameterGroup* group : groups) {
    for (const Parameter* p : group->members()) {
      if (p->own_slice().count == 0 || !p->is_sliced()) continue;
      const Gradient gradient{p->own_grad(), p->name()};
      if (travels_with_others(gradient.tensor)) {
        small.add(mesh_->replicas(), gradient);
      } else {
        under_way_.push_back(sum_over(ctx, mesh_->replicas(), gradient));
      }
    }
  }
  sum_together(ctx, small);
}

void DataRanks::add_summed(const kernels::KernelCtx& ctx, const Parameter& p,
                           const Tensor& grad) const {
  const Tensor own = p.own_part(grad);
  if (p.is_sliced()) {
    owners_sum(ctx, p, grad).arrive(ctx);
    if (mesh_->replicas().size() > 1) sum_over(ctx, mesh_->replicas(), {own, p.name()}).arrive(ctx);
  } else if (mesh_->data().size() > 1) {
    sum_over(ctx, mesh_->data(p.holders_of_data()), {grad, p.name()}).arrive(ctx);
  }
  if (p.own_slice().count == 0) return;
  const Tensor& sum = p.own_grad();
  kernels::launch(ctx, kernels::Add{.a = sum, .b = own, .y = sum});
}

void DataRanks::sum(const Tensor& scalars, std::string_view site) const {
  if (mesh_->data().size() > 1) mesh_->data().all_reduce(scalars, ReduceOp::sum, site).wait();
}

void DataRanks::gather_updates(const kernels::KernelCtx& ctx) const {
  std::deque<ParameterGather> under_way;
  for (const auto& groups : units_) {
    std::vector<const Parameter*> updated;
    for (const ParameterGroup* group : groups) {
      const auto is_gathered = [](const Parameter* p) {
        return p->is_sliced() && !p->shards().parameters;
      };
      std::ranges::copy_if(group->members(), std::back_inserter(updated), is_gathered);
    }
    if (under_way.size() == kMostUnits) {
      under_way.front().arrive(ctx);
      under_way.pop_front();
    }
    under_way.emplace_back(ctx, *mesh_, updated, nullptr);
  }
  for (ParameterGather& gather : under_way) gather.arrive(ctx);
}

}  // namespace llmtrain::parallel
