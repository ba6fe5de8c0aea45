#include "lib/parallel/parameter_gather.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/parallel/companions.hpp"
#include "lib/parallel/slice_layout.hpp"

namespace llmtrain::parallel {

namespace {

bool is_elsewhere(const Parameter* p) { return p->copy_is_elsewhere(); }

/// Its own slice: of what is elsewhere a part of the whole, into which it was read.
Tensor own_copy(const Parameter& p) {
  return is_elsewhere(&p) ? p.own_part(p.compute()) : p.own_compute();
}

}  // namespace

ParameterGather::ParameterGather(const kernels::KernelCtx& ctx, const Mesh& mesh,
                                 std::span<const Parameter* const> parameters,
                                 const ValuesElsewhere* elsewhere)
    : mesh_(&mesh), parameters_(parameters.begin(), parameters.end()) {
  std::ranges::any_of(parameters_, is_elsewhere) ? bring(elsewhere) : send(ctx);
}

void ParameterGather::bring(const ValuesElsewhere* elsewhere) {
  require(elsewhere != nullptr, "{} is kept nowhere", parameters_.front()->name());
  std::vector<ValuesElsewhere::CopyRead> own;
  for (const Parameter* p : parameters_) {
    if (!is_elsewhere(p) || p->own_slice().count == 0) continue;
    const View& to = brought_.emplace_back(own_copy(*p)).view();
    own.push_back({p, {to.as<std::byte>(), to.bytes()}});
  }
  coming_ = elsewhere->bring_copies(std::move(own));
}

void ParameterGather::send(const kernels::KernelCtx& ctx) {
  Companions<const Parameter*> small;
  for (const Parameter* p : parameters_) {
    Communicator& owners = mesh_->owners(p->holders_of_data());
    if (owners.size() == 1) continue;  // it owns all
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
  handles_.push_back(owners.all_gather_parts(own_copy(p), p.compute(), p.slice_counts(), p.name()));
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
      const Parameter& p = *at.parameter;
      const Tensor own = own_copy(p);
      kernels::launch(ctx, kernels::ScaleCast{.x = own, .y = place.reshape(own.shape())});
      if (!p.shards().parameters || is_elsewhere(&p)) continue;  // it is a part of the whole
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
  if (coming_) {
    const auto begin = std::chrono::steady_clock::now();
    coming_->arrive();
    waited_ = std::chrono::steady_clock::now() - begin;
    coming_.reset();
    send(ctx);
  }
  for (Handle& handle : handles_) handle.wait();
  for (const Place& place : places_) {
    kernels::launch(ctx, kernels::ScaleCast{.x = place.travelling, .y = place.of_whole});
  }
  places_.clear();
  messages_.clear();
}

}  // namespace llmtrain::parallel
