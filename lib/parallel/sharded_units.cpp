#include "lib/parallel/sharded_units.hpp"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/parallel/companions.hpp"
#include "lib/parallel/slice_layout.hpp"

namespace llmtrain::parallel {

namespace {

/// Whether the first product for the gradient can be all of it: those of linear layers, of which
/// experts' add where they have rows, and quantized ones always.
bool is_written_whole(const OpCtx& ctx, const ParameterGroup& group) {
  const Parameter& first = *group.members().front();
  return ctx.quantized == nullptr && first.is_linear() && !first.placement().of_experts;
}

}  // namespace

// The walk meets this first of what was recorded around the units' operations.
class ShardedUnits::WayBackBegin final : public Node {
 public:
  WayBackBegin(ShardedUnits& shards, Range units, Range before)
      : Node("sharded units"), shards_(&shards), units_(units), before_(before) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor>) override {
    if (!shards_->stay(units_)) shards_->acquire(ctx, units_, Way::back);
    shards_->gather(ctx, before_, Way::back);
    shards_->open_gradients(ctx, units_, Way::back);
    return {};
  }

 private:
  ShardedUnits* shards_;
  Range units_, before_;
};

// And this last. Values that are computed again for weight parts may need the parameters for it.
class ShardedUnits::WayBackEnd final : public Node {
 public:
  WayBackEnd(ShardedUnits& shards, Range units, Range stage, bool computes_again)
      : Node("sharded units"),
        shards_(&shards),
        units_(units),
        stage_(stage),
        computes_again_(computes_again) {}
  std::vector<Tensor> input_grad(const OpCtx&, std::span<Tensor>) override {
    if (!computes_again_) shards_->release(units_, Way::back);
    return {};
  }
  bool has_weight_grad() const override { return true; }
  void weight_grad(const OpCtx& ctx) override {
    if (computes_again_) shards_->release(units_, Way::back);
    shards_->for_tied(units_, stage_, [](ParameterGroup&, State& s) { --s.writers_to_come; });
    shards_->reduce_gradients(ctx, units_);
  }

 private:
  ShardedUnits* shards_;
  Range units_, stage_;
  bool computes_again_;
};

template <class Body>
void ShardedUnits::for_readers(Range units, Way way, const Body& body) {
  if (!shards_.parameters) return;
  for (int u = units.begin; u < units.end; ++u) {
    const Unit& unit = units_[static_cast<std::size_t>(u)];
    if (way == Way::back && !unit.reads_on_way_back) continue;
    for (ParameterGroup* group : unit.groups) {
      if (group->members().front()->shards().parameters) body(*group, states_[group]);
    }
  }
}

template <class Body>
void ShardedUnits::for_writers(Range units, Way way, const Body& body) {
  if (!shards_.gradients) return;
  for (int u = units.begin; u < units.end; ++u) {
    const Unit& unit = units_[static_cast<std::size_t>(u)];
    if (unit.writes_on_way_forth != (way == Way::forth)) continue;
    for (ParameterGroup* group : unit.groups) {
      if (group->members().front()->shards().gradients) body(*group, states_[group]);
    }
  }
}

template <class Body>
void ShardedUnits::for_tied(Range units, Range stage, const Body& body) {
  const int last = static_cast<int>(units_.size()) - 1;
  if (units.begin != 0 || units.end > last || stage.begin != 0 || stage.end <= last) return;
  for (ParameterGroup* group : units_.front().groups) {
    if (std::ranges::count(units_.back().groups, group) > 0) body(*group, states_[group]);
  }
}

void ShardedUnits::enter(const OpCtx& ctx, Range units, Range stage) {
  acquire(ctx, units, Way::forth);
  if (units.end < stage.end) gather(ctx, {units.end, units.end + 1}, Way::forth);
  if (ctx.tape == nullptr) return;
  open_gradients(ctx, units, Way::forth);
  for_tied(units, stage, [](ParameterGroup&, State& state) {
    ++state.readers;
    ++state.writers_to_come;
  });
  const bool computes_again = ctx.recomputed_ops != nullptr && !ctx.recomputed_ops->empty();
  ctx.tape->record_stop(std::make_unique<WayBackEnd>(*this, units, stage, computes_again));
}

void ShardedUnits::leave(const OpCtx& ctx, Range units, Range stage) {
  if (ctx.tape == nullptr) return release(units, Way::forth);
  release_but_what_stays(units);
  if (units.end == stage.end) {
    for_tied({0, 1}, stage, [this](ParameterGroup& group, State& state) { drop(group, state); });
  }
  const Range before = units.begin > stage.begin ? Range{units.begin - 1, units.begin} : Range{};
  ctx.tape->record_stop(std::make_unique<WayBackBegin>(*this, units, before));
}

void ShardedUnits::gather(const OpCtx& ctx, Range units, Way way) {
  std::vector<const Parameter*> opened;
  for_readers(units, way, [&](ParameterGroup& group, State&) {
    if (group.compute().defined()) return;
    group.open_compute(*ctx.kernel.device);
    opened.insert(opened.end(), group.members().begin(), group.members().end());
  });
  if (!opened.empty()) gathers_.emplace_back(ctx.kernel, *mesh_, opened, elsewhere_);
}

void ShardedUnits::acquire(const OpCtx& ctx, Range units, Way way) {
  gather(ctx, units, way);
  // Who gathers ahead acquires next: nothing else is under way.
  for (ParameterGather& gather : gathers_) {
    gather.arrive(ctx.kernel);
    waited_ += gather.waited();
  }
  gathers_.clear();
  for_readers(units, way, [](ParameterGroup&, State& state) { ++state.readers; });
}

void ShardedUnits::release(Range units, Way way) {
  for_readers(units, way, [this](ParameterGroup& group, State& state) { drop(group, state); });
}

void ShardedUnits::release_but_what_stays(Range units) {
  if (stay(units)) {  // the reader of the way forth becomes the one of the way back
    for_readers(units, Way::back, [](ParameterGroup&, State& state) { ++state.readers; });
  }
  release(units, Way::forth);
}

bool ShardedUnits::stay(Range units) const {
  const auto begin = units_.begin();
  return std::any_of(begin + units.begin, begin + units.end,
                     [](const Unit& unit) { return unit.stays_until_way_back; });
}

void ShardedUnits::drop(ParameterGroup& group, State& state) {
  const bool is_sliced = group.members().front()->shards().parameters;
  if (--state.readers == 0 && is_sliced) group.close_compute();
}

void ShardedUnits::open_gradients(const OpCtx& ctx, Range units, Way way) {
  for_writers(units, way, [&](ParameterGroup& group, State& state) {
    ++state.writers;
    if (std::exchange(state.gradient_is_open, true)) return;
    if (group.grad().defined()) settle(ctx);  // on its way to the owners still
    group.open_grad(*ctx.kernel.device);
    if (is_written_whole(ctx, group)) {
      unwritten_.add(group);
    } else {
      ctx.launch(kernels::Fill{.y = group.grad(), .value = 0});
    }
  });
}

void ShardedUnits::reduce_gradients(const OpCtx& ctx, Range units) {
  settle(ctx);  // of the unit before
  Companions<const Parameter*> small;
  const auto reduce = [&](ParameterGroup& group, State& state) {
    if (--state.writers > 0 || state.writers_to_come > 0) return;
    state.gradient_is_open = false;
    require(!unwritten_.take(group), "{}: nobody has written its gradient", group.name());
    leaving_.push_back(&group);
    for (const Parameter* p : group.members()) {
      travels_with_others(p->grad()) ? small.add(owners(*p), p) : reduce_alone(ctx, *p);
    }
  };
  for_writers(units, Way::forth, reduce);
  for_writers(units, Way::back, reduce);
  for (const auto& [owners, of] : small) {
    if (of.size() == 1) {
      reduce_alone(ctx, *of.front());
    } else {
      buckets_.push_back(GradientBucket::to_owners(ctx.kernel, *owners, of, grad_reduce_));
    }
  }
}

void ShardedUnits::reduce_alone(const OpCtx& ctx, const Parameter& p) {
  sums_.emplace_back(&p,
                     TravellingSum::to_owners(ctx.kernel, owners(p), p, p.grad(), grad_reduce_));
}

void ShardedUnits::arrive(const OpCtx& ctx) {
  for (auto& [parameter, sum] : sums_) sum.arrive_onto(ctx.kernel, parameter->own_grad());
  for (GradientBucket& bucket : buckets_) bucket.arrive_onto_own(ctx.kernel);
  sums_.clear();
  buckets_.clear();
}

void ShardedUnits::settle(const OpCtx& ctx) {
  arrive(ctx);
  for (ParameterGroup* group : leaving_) group->close_grad();
  leaving_.clear();
}

}  // namespace llmtrain::parallel
