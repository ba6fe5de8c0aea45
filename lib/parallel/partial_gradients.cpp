#include "lib/parallel/partial_gradients.hpp"

#include <array>

#include "lib/base/require.hpp"

namespace llmtrain::parallel {

namespace {

// The group of `count` neighbours along Axis::tp that this rank is one of.
std::unique_ptr<Communicator> neighbours(const Mesh& mesh, int count,
                                         const CommunicatorFactory& factory) {
  constexpr std::array kAxis{Axis::tp};
  const std::vector<int> all = group_of(mesh.shape(), mesh.rank(), kAxis);
  const int index = mesh.index(Axis::tp);
  const auto first = all.begin() + (index - index % count);
  return factory("tp replicas", std::vector<int>(first, first + count), index % count);
}

}  // namespace

PartialGradients::PartialGradients(const ParameterStore& store, const Mesh& mesh,
                                   const CommunicatorFactory& factory)
    : axis_(&mesh.axis(Axis::tp)) {
  if (mesh.size(Axis::tp) == 1) return;
  int replicas = 1;
  for (const auto& parameter : store.all()) {
    const AxisPlacement& how = parameter->placement()[Axis::tp];
    if (how.replicas > 1) {
      require(replicas == 1 || replicas == how.replicas, "{}: {} replicas, others have {}",
              parameter->name(), how.replicas, replicas);
      replicas = how.replicas;
    }
    if (!parameter->is_local()) continue;
    if (how.grad_partial) over_axis_.push_back(parameter.get());
    if (how.replicas > 1) over_replicas_.push_back(parameter.get());
  }
  if (replicas > 1) replicas_ = neighbours(mesh, replicas, factory);
}

void PartialGradients::use_staging(const Tensor& staging) const {
  if (replicas_) replicas_->use_staging(staging);
}

void PartialGradients::sum() const {
  std::vector<Handle> handles;
  for (const Parameter* p : over_axis_) {
    handles.push_back(axis_->all_reduce(p->grad(), ReduceOp::sum, p->name()));
  }
  for (const Parameter* p : over_replicas_) {
    handles.push_back(replicas_->all_reduce(p->grad(), ReduceOp::sum, p->name()));
  }
  for (Handle& handle : handles) handle.wait();
}

}  // namespace llmtrain::parallel
