#include "lib/parallel/parameter_gather.hpp"

#include "kernels/elementwise.hpp"
#include "lib/parallel/companions.hpp"
#include "lib/parallel/slice_layout.hpp"

namespace llmtrain::parallel {

ParameterGather::ParameterGather(const kernels::KernelCtx& ctx, const Mesh& mesh,
                                 std::span<const Parameter* const> parameters) {
  Companions<const Parameter*> small;
  for (const Parameter* p : parameters) {
    Communicator& owners = mesh.owners(p->holders_of_data());
    if (travels_with_others(p->compute())) {
      small.add(owners, p);
    } else {
      gather(owners, *p);
    }
  }
  for (const auto& [owners, of] : small) {
    of.size() == 1 ? gather(*owners, *of.front()) : gather_together(ctx, *owners, of);
  }
}

void ParameterGather::gather(Communicator& owners, const Parameter& p) {
  handles_.push_back(
      owners.all_gather_parts(p.own_compute(), p.compute(), p.slice_counts(), p.name()));
}

void ParameterGather::gather_together(const kernels::KernelCtx& ctx, Communicator& owners,
                                      std::span<const Parameter* const> parameters) {
  const SliceLayout layout(parameters, owners.size(), owners.rank());
  const Tensor message =
      ctx.device->allocate({layout.elements}, parameters.front()->compute_dtype(), Category::comm,
                           "bucket of parameters");
  for (const SliceLayout::Place& at : layout.places) {
    const Tensor place = message.columns(at.begin, at.of_box.count);
    if (at.owner == owners.rank()) {
      const Tensor& own = at.parameter->own_compute();
      kernels::launch(ctx, kernels::ScaleCast{.x = own, .y = place.reshape(own.shape())});
      if (!at.parameter->shards().parameters) continue;  // it is a part of the whole
    }
    const Tensor& whole = at.parameter->compute();
    places_.push_back(
        {place, whole.reshape({whole.numel()}).columns(at.of_box.first, at.of_box.count)});
  }
  messages_.push_back(message);
  handles_.push_back(owners.all_gather_parts(message.columns(layout.own_begin, layout.own_count),
                                             message, layout.counts, layout.site));
}

void ParameterGather::arrive(const kernels::KernelCtx& ctx) {
  for (Handle& handle : handles_) handle.wait();
  for (const Place& place : places_) {
    kernels::launch(ctx, kernels::ScaleCast{.x = place.travelling, .y = place.of_whole});
  }
  places_.clear();
  messages_.clear();
}

}  // namespace llmtrain::parallel
