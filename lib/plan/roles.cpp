#include "lib/plan/roles.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/snapshot.hpp"
#include "lib/engine/checkpoint_share.hpp"
#include "lib/mesh/data_places.hpp"

namespace llmtrain::plan {

namespace {

std::uint64_t hash_of(std::initializer_list<std::int64_t> values, std::uint64_t seed) {
  return hash64(std::as_bytes(std::span(values.begin(), values.size())), seed);
}

/// A parameter as ranks with one coordinate of tp and pp hold it.
class HeldParameter {
 public:
  HeldParameter(const Parameter& p, const engine::WriteTurn& turn, const engine::Engine& engine,
                const optim::OptimizerSet& optimizer)
      : parameter_(&p),
        optimizer_(&optimizer),
        writer_(turn.writer),
        is_counted_(counts_here(p, engine.mesh())) {}

  /// Elements of the own slice at a place.
  std::int64_t count(const DataPlace& place) const {
    if (!parameter_->is_sliced()) return parameter_->box().shape.numel();
    const bool of_all = parameter_->holders_of_data() == DataHolders::all;
    const int owner = of_all ? place.owner : place.expert_owner;
    return parameter_->slice_counts()[static_cast<std::size_t>(owner)];
  }
  bool is_written(const DataPlace& place) const {
    const bool of_all = parameter_->holders_of_data() == DataHolders::all;
    const int place_of_data = of_all ? place.data : place.same_experts;
    return is_counted_ && writer_ == (parameter_->is_sliced() ? place.replica : place_of_data);
  }
  /// Of so many elements and their states: kept, and written by the rank whose turn it is.
  optim::OptimizerSet::StateBytes bytes(std::int64_t elements) const {
    optim::OptimizerSet::StateBytes bytes;
    const Parameter& p = *parameter_;
    if (p.is_trained()) bytes = optimizer_->state_bytes(p, elements);
    const std::uint64_t values = static_cast<std::uint64_t>(elements) *
                                 size_of(p.has_master() ? p.master_dtype() : p.compute_dtype());
    const bool is_copy = !p.has_master() || !p.has_separate_copy();
    const bool elsewhere = is_copy ? p.copy_is_elsewhere() : p.master_is_elsewhere();
    return {bytes.kept + (elsewhere ? 0 : values), bytes.written + values};
  }
  /// Of its box and so many own elements.
  std::uint64_t hash(std::int64_t elements, std::uint64_t seed) const {
    const auto box = parameter_->box().shape.dims();
    return hash64(std::as_bytes(std::span(box.data(), box.size())),
                  hash_of({elements, static_cast<std::int64_t>(parameter_->role())}, seed));
  }

 private:
  const Parameter* parameter_;
  const optim::OptimizerSet* optimizer_;
  int writer_;
  bool is_counted_;
};

struct RoleKey {
  int stage_rank = 0;
  std::uint64_t elements = 0;  // hash of the own elements of every parameter
  std::uint64_t written = 0;   // bytes of a snapshot
  auto operator<=>(const RoleKey&) const = default;
};
using Roles = std::map<RoleKey, RankRole>;

std::vector<HeldParameter> held_parameters(engine::Engine& engine) {
  std::vector<HeldParameter> held;
  for (const auto& turn : engine::write_turns(engine.parameters(), engine.mesh())) {
    held.emplace_back(*turn.parameter, turn, engine, *engine.optimizer());
  }
  return held;
}

/// Ranks with the coordinates of tp and pp that `target` has.
void add_ranks(Roles& roles, const engine::EngineOptions& options, const engine::Target& target,
               std::span<const DataPlace> places) {
  Device device(make_meta_memory(), kUnlimitedBytes);
  engine::Engine engine(meta_place(device, target, nullptr), options);
  const std::vector<HeldParameter> held = held_parameters(engine);
  const std::uint64_t shard_bytes = target.device_snapshot_shard_bytes();
  MeshCoordinate at = coordinate_of(target.mesh, target.rank);
  for (const DataPlace& place : places) {
    RoleKey key{.stage_rank = engine.mesh().index(Axis::pp)};
    std::uint64_t own = 0, alike = 0;
    for (const HeldParameter& p : held) {
      const std::int64_t count = p.count(place);
      own += p.bytes(count).kept;
      key.elements = p.hash(count, key.elements);
      alike += p.hash(count, 0);  // in any order
      if (shard_bytes > 0 && p.is_written(place)) key.written += p.bytes(count).written;
    }
    at[static_cast<int>(Axis::dp)] = place.dp;
    at[static_cast<int>(Axis::sp)] = place.sp;
    const int rank = rank_of(target.mesh, at);
    RankRole& role = roles[key];
    role.rank = role.count == 0 ? rank : std::min(role.rank, rank);
    ++role.count;
    role.stage_rank = key.stage_rank;
    role.own_bytes = own + checkpoint::snapshot_bytes(key.written, shard_bytes);
    role.alike = hash_of({static_cast<std::int64_t>(key.written)}, alike);
  }
}

}  // namespace

std::vector<RankRole> rank_roles(const engine::EngineOptions& options,
                                 const engine::Target& target) {
  const std::vector<DataPlace> places = data_places(target.mesh);
  constexpr std::array kModel{Axis::tp, Axis::pp};
  Roles found;
  for (const int rank : group_of(target.mesh, 0, kModel)) {
    engine::Target of_rank = target;
    of_rank.rank = rank;
    add_ranks(found, options, of_rank, places);
  }
  std::vector<RankRole> roles;
  for (const auto& [key, role] : found) roles.push_back(role);
  return roles;
}

std::vector<RankRole> roles_to_plan(std::vector<RankRole> roles, std::size_t most) {
  std::ranges::sort(roles, [](const RankRole& a, const RankRole& b) {
    return std::pair(b.own_bytes, a.rank) < std::pair(a.own_bytes, b.rank);
  });
  std::map<int, std::vector<RankRole>> of_stage;
  for (const RankRole& role : roles) of_stage[role.stage_rank].push_back(role);
  std::vector<RankRole> chosen;
  for (auto& [stage, its] : of_stage) {
    if (its.size() > 2) std::rotate(its.begin() + 1, its.end() - 1, its.end());  // owns least
    const std::ptrdiff_t ends = std::min<std::ptrdiff_t>(2, std::ssize(its));
    std::set<std::uint64_t> kinds;
    for (std::ptrdiff_t i = 0; i < ends; ++i) kinds.insert(its[static_cast<std::size_t>(i)].alike);
    std::stable_partition(its.begin() + ends, its.end(),
                          [&](const RankRole& role) { return kinds.insert(role.alike).second; });
    its.resize(std::min(its.size(), std::max<std::size_t>(2, most / of_stage.size())));
    chosen.insert(chosen.end(), its.begin(), its.end());
  }
  return chosen;
}

RoleSurvey survey_roles(const engine::EngineOptions& options, std::int64_t samples_per_step,
                        engine::Target target, Plan& fullest, std::size_t most) {
  std::vector<RankRole> roles = rank_roles(options, target);
  RoleSurvey survey{.roles = {}, .num_roles = roles.size()};
  for (const RankRole& role : roles_to_plan(std::move(roles), most)) {
    target.rank = role.rank;
    const Plan* known = survey.roles.empty() ? nullptr : &fullest;
    Plan plan = make_plan(options, samples_per_step, target, known);
    survey.roles.push_back({.rank = role.rank,
                            .count = role.count,
                            .peak_bytes = plan.peak_bytes(),
                            .extent_bytes = plan.extent_bytes(),
                            .step = plan.step.peak});
    const auto need = [](const Plan& of) { return std::pair(of.extent_bytes(), -of.rank); };
    if (known == nullptr || need(plan) > need(fullest)) fullest = std::move(plan);
  }
  std::ranges::sort(survey.roles, [](const RoleMemory& a, const RoleMemory& b) {
    return std::pair(b.extent_bytes, a.rank) < std::pair(a.extent_bytes, b.rank);
  });
  return survey;
}

}  // namespace llmtrain::plan
