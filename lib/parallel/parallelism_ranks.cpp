// ParallelismSection on the ranks of a job.
#include <algorithm>
#include <array>

#include "lib/base/require.hpp"
#include "lib/parallel/divisors.hpp"
#include "lib/parallel/parallelism_section.hpp"

namespace llmtrain::parallel {

using recipe::RefusedValue;
using AxisKey = recipe::Key<std::int64_t>;
using Axes = std::array<const AxisKey*, 3>;

int ParallelismSection::least_ranks() const {
  const auto named = [](std::int64_t size) { return std::max<std::int64_t>(1, size); };
  const std::int64_t data = (named(ep()) * dp_replicate() + named(sp()) - 1) / named(sp());
  const std::int64_t replicas = std::max({named(dp()), dp_replicate(), data});
  return static_cast<int>(std::min(kMostRanks, replicas * named(tp()) * named(pp()) * named(sp())));
}

namespace {

std::string ranks_text(std::int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

// "start 4 or 8, as mpirun -n 8 llmtrain run ...".
std::string start(std::int64_t below, std::int64_t ranks) {
  return fmt::format("start {}{}, as mpirun -n {} llmtrain run ...",
                     below == 0 ? "" : fmt::format("{} or ", below), ranks, ranks);
}

// The one that is asked to change.
const AxisKey& largest(const Axes& axes) {
  return **std::ranges::max_element(axes, {}, [](const AxisKey* axis) { return (*axis)(); });
}

// " with tp 2 x pp 4" of those above 1.
std::string beside(const AxisKey& key, const Axes& axes) {
  std::string text;
  for (const AxisKey* axis : axes) {
    if (axis == &key || (*axis)() <= 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? " with " : " x ", axis->name(), (*axis)());
  }
  return text;
}

/// How often the axes together go into `ranks`.
int rest_of(int ranks, const Axes& axes) {
  std::int64_t share = 1;
  for (const AxisKey* axis : axes) share *= (*axis)();
  if (ranks % share == 0) return static_cast<int>(ranks / share);
  const std::int64_t below = ranks / share * share;
  std::int64_t smaller = std::min<std::int64_t>(share, ranks), larger = smaller;
  while (ranks % smaller != 0) --smaller;
  while (ranks % larger != 0) ++larger;
  const AxisKey& key = largest(axes);
  const std::string others = beside(key, axes);
  throw RefusedValue(
      key, fmt::format("{}{} does not divide the job's {}", key(), others, ranks_text(ranks)),
      fmt::format("{}, or choose sizes that do{}: {}{}", start(below, below + share),
                  others.empty() ? "" : ", as a product", smaller,
                  larger == smaller ? "" : fmt::format(" or {}", larger)));
}

}  // namespace

std::string_view ParallelismSection::rest_axis() const {
  for (const auto* axis : {&tp, &pp, &sp}) {
    if ((*axis)() == kRest) return axis->name();
  }
  return "";
}

void ParallelismSection::take_rest(int ranks) {
  const std::string who = fmt::format("the rest of {}", ranks_text(ranks));
  if (tp() == kRest) tp.set(rest_of(ranks, {&dp, &pp, &sp}), who);
  if (pp() == kRest) pp.set(rest_of(ranks, {&dp, &tp, &sp}), who);
  if (sp() == kRest) sp.set(rest_of(ranks, {&dp, &tp, &pp}), who);
  if (ep() == kRest) ep.set(expert_sharers(ranks), who);
}

int ParallelismSection::data_ranks(int ranks) const {
  require(tp() > 0 && pp() > 0 && sp() > 0, "parallelism.{} has not taken its rest", rest_axis());
  const Axes model{&tp, &sp, &pp};
  const int rest = rest_of(ranks, model);
  if (dp() == kRest || dp() == rest) return rest;
  const std::int64_t needed = dp() * tp() * sp() * pp();
  throw RefusedValue(dp,
                     fmt::format("{}{} takes {}, and the job has {}", dp(), beside(dp, model),
                                 ranks_text(needed), ranks_text(ranks)),
                     fmt::format("{}, or set parallelism.dp=-1", start(0, needed)));
}

int ParallelismSection::expert_sharers(int ranks) const {
  const int data = data_ranks(ranks);
  const auto groups = static_cast<int>(dp_replicate());
  if (data % groups != 0) {
    throw RefusedValue(dp_replicate,
                       fmt::format("{} does not divide the {} of dp", groups, ranks_text(data)),
                       divisors(data, groups));
  }
  return data / groups * static_cast<int>(sp());
}

MeshShape ParallelismSection::shape(int ranks) const {
  MeshShape shape;
  const auto groups = static_cast<int>(dp_replicate());
  shape.dp_replicate = groups;
  const int sharers = expert_sharers(ranks);
  const auto experts = static_cast<int>(ep());
  require(experts > 0, "parallelism.ep has not taken its rest");
  if (sharers % experts != 0) {
    throw RefusedValue(
        ep,
        fmt::format("{} does not divide the {} of dp x sp{}", experts, ranks_text(sharers),
                    groups == 1 ? "" : " in a group of dp_replicate"),
        fmt::format("{}, and the model's experts have to divide by it",
                    divisors(sharers, experts)));
  }
  shape.ep = experts;
  shape.ep_room = ep_room().value_or(0);
  shape.sizes[static_cast<int>(Axis::dp)] = data_ranks(ranks);
  shape.sizes[static_cast<int>(Axis::tp)] = static_cast<int>(tp());
  shape.sizes[static_cast<int>(Axis::sp)] = static_cast<int>(sp());
  shape.sizes[static_cast<int>(Axis::pp)] = static_cast<int>(pp());
  for (std::size_t i = 0; i < shape.order.size(); ++i) {
    for (int a = 0; a < kNumAxes; ++a) {
      const Axis axis{static_cast<std::uint8_t>(a)};
      if (order()[i] == to_string(axis)) shape.order[i] = axis;
    }
  }
  shape.tp_sequence_parallel = tp_sequence_parallel();
  shape.sp_algo = sp_algo();
  shape.sp_ulysses = static_cast<int>(sp_ulysses());
  return shape;
}

}  // namespace llmtrain::parallel
