#include "lib/parallel/partial_gradients.hpp"

#include <algorithm>
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

// The group of the holders along Axis::pp; of this rank alone where it is none of them.
std::unique_ptr<Communicator> holders_group(const Mesh& mesh, std::span<const int> holders,
                                            const CommunicatorFactory& factory) {
  constexpr std::array kAxis{Axis::pp};
  const std::vector<int> all = group_of(mesh.shape(), mesh.rank(), kAxis);
  const auto here = std::ranges::find(holders, mesh.index(Axis::pp));
  if (here == holders.end()) return factory("pp holders", {mesh.rank()}, 0);
  std::vector<int> members;
  for (const int holder : holders) members.push_back(all[static_cast<std::size_t>(holder)]);
  return factory("pp holders", members, static_cast<int>(here - holders.begin()));
}

}  // namespace

PartialGradients::PartialGradients(const ParameterStore& store, const Mesh& mesh,
                                   const CommunicatorFactory& factory) {
  over_axis_.group = &mesh.axis(Axis::tp);
  int replicas = 1;
  std::span<const int> holders;
  for (const auto& parameter : store.all()) {
    const AxisPlacement& how = parameter->placement()[Axis::tp];
    if (how.replicas > 1) {
      require(replicas == 1 || replicas == how.replicas, "{}: {} replicas, others have {}",
              parameter->name(), how.replicas, replicas);
      replicas = how.replicas;
    }
    if (parameter->holders().size() > 1) {
      require(holders.empty() || std::ranges::equal(holders, parameter->holders()),
              "{}: other holders than another parameter's", parameter->name());
      holders = parameter->holders();
    }
    if (!parameter->is_local()) continue;
    if (how.grad_partial && over_axis_.group->size() > 1) {
      over_axis_.parameters.push_back(parameter.get());
    }
    if (how.replicas > 1) over_replicas_.parameters.push_back(parameter.get());
    if (parameter->holders().size() > 1) over_holders_.parameters.push_back(parameter.get());
  }
  if (replicas > 1) over_replicas_.own_group = neighbours(mesh, replicas, factory);
  if (!holders.empty()) over_holders_.own_group = holders_group(mesh, holders, factory);
  for (Terms* terms : {&over_replicas_, &over_holders_}) terms->group = terms->own_group.get();
}

void PartialGradients::use_staging(const Tensor& staging) const {
  for (const Terms* terms : {&over_replicas_, &over_holders_}) {
    if (terms->group != nullptr) terms->group->use_staging(staging);
  }
}

void PartialGradients::sum() const {
  for (const Terms* terms : {&over_axis_, &over_replicas_, &over_holders_}) {
    std::vector<Handle> handles;
    for (const Parameter* p : terms->parameters) {
      handles.push_back(terms->group->all_reduce(p->own_grad(), ReduceOp::sum, p->name()));
    }
    for (Handle& handle : handles) handle.wait();
  }
}

}  // namespace llmtrain::parallel
