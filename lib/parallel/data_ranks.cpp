#include "lib/parallel/data_ranks.hpp"

#include "kernels/elementwise.hpp"

namespace llmtrain::parallel {

void DataRanks::for_sliced(const std::function<Handle(const Parameter&)>& start) const {
  std::vector<Handle> handles;
  for (const Parameter* p : store_->local()) {
    if (p->is_sliced()) handles.push_back(start(*p));
  }
  for (Handle& handle : handles) handle.wait();
}

Handle DataRanks::start_owners_sum(const Parameter& p, const Tensor& grad) const {
  return mesh_->owners(p.holders_of_data())
      .reduce_scatter_parts(grad, p.own_part(grad), p.slice_counts(), p.name());
}

Handle DataRanks::start_replicas_sum(const Parameter& p, const Tensor& own) const {
  return mesh_->replicas().all_reduce(own, ReduceOp::sum, p.name());
}

void DataRanks::sum_gradients() const {
  if (mesh_->data().size() == 1) return;
  for_sliced([&](const Parameter& p) {
    return p.shards().gradients ? Handle() : start_owners_sum(p, p.grad());
  });
  if (mesh_->replicas().size() > 1) {
    for_sliced([&](const Parameter& p) { return start_replicas_sum(p, p.own_grad()); });
  }
  std::vector<Handle> handles;
  for (const ParameterGroup* group : store_->local_groups()) {
    const Parameter& first = *group->members().front();
    if (first.is_sliced()) continue;
    handles.push_back(mesh_->data(first.holders_of_data())
                          .all_reduce(group->grad(), ReduceOp::sum, group->name()));
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
  for_sliced([&](const Parameter& p) {
    if (p.shards().parameters) return Handle();
    return mesh_->owners(p.holders_of_data())
        .all_gather_parts(p.own_compute(), p.compute(), p.slice_counts(), p.name());
  });
}

}  // namespace llmtrain::parallel
