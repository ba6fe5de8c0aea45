#include "lib/parallel/data_ranks.hpp"

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
    for (int u = units_.begin; u < units_.end; ++u) {
      for (const ParameterGroup* group : ranks_->units_[static_cast<std::size_t>(u)]) {
        ranks_->start(ctx.kernel, *group);
      }
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

Handle DataRanks::start_owners_sum(const Parameter& p, const Tensor& grad) const {
  return mesh_->owners(p.holders_of_data())
      .reduce_scatter_parts(grad, p.own_part(grad), p.slice_counts(), p.name());
}

Handle DataRanks::start_replicas_sum(const Parameter& p, const Tensor& own) const {
  return mesh_->replicas().all_reduce(own, ReduceOp::sum, p.name());
}

void DataRanks::start(const kernels::KernelCtx& ctx, const ParameterGroup& group) {
  if (!started_.insert(&group).second) return;
  const Parameter& first = *group.members().front();
  if (first.shards().gradients) return;  // by ShardedUnits
  if (completion_) completion_(ctx, group);
  if (!first.is_sliced()) {
    Communicator& data = mesh_->data(first.holders_of_data());
    under_way_.push_back(data.all_reduce(group.grad(), ReduceOp::sum, group.name()));
    return;
  }
  for (const Parameter* p : group.members()) {
    under_way_.push_back(start_owners_sum(*p, p->grad()));
  }
}

void DataRanks::sum_gradients(const kernels::KernelCtx& ctx) {
  if (mesh_->data().size() == 1) return;
  for (const ParameterGroup* group : store_->local_groups()) start(ctx, *group);
  for (Handle& handle : under_way_) handle.wait();
  under_way_.clear();
  started_.clear();
  if (mesh_->replicas().size() == 1) return;
  std::vector<Handle> handles;
  for (const Parameter* p : store_->local()) {
    if (p->is_sliced()) handles.push_back(start_replicas_sum(*p, p->own_grad()));
  }
  for (Handle& handle : handles) handle.wait();
}

void DataRanks::add_summed(const kernels::KernelCtx& ctx, const Parameter& p,
                           const Tensor& grad) const {
  const Tensor own = p.own_part(grad);
  if (p.is_sliced()) {
    start_owners_sum(p, grad).wait();
    if (mesh_->replicas().size() > 1) start_replicas_sum(p, own).wait();
  } else if (mesh_->data().size() > 1) {
    mesh_->data(p.holders_of_data()).all_reduce(grad, ReduceOp::sum, p.name()).wait();
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
