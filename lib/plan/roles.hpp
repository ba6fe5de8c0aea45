#pragma once
/// Which ranks of a layout need the same memory, and what one of each kind needs.

#include <cstdint>
#include <vector>

#include "lib/plan/plan.hpp"

namespace llmtrain::plan {

/// Ranks that hold as many elements of each parameter and write as much of a checkpoint.
struct RankRole {
  int rank = 0;        // the first of them
  int count = 0;       // how many they are
  int stage_rank = 0;  // along Axis::pp
  /// Of what differs between ranks of a stage: masters, states and the snapshot of a save.
  std::uint64_t own_bytes = 0;
  /// Of all roles of a stage rank with this number the rank holds parts of the same shapes, perhaps
  /// of other layers.
  std::uint64_t alike = 0;
};

/// All roles of the target's layout, whose ranks are found from parameters and slices alone: an
/// engine is built for every rank of tp x pp, and none runs.
std::vector<RankRole> rank_roles(const engine::EngineOptions& options,
                                 const engine::Target& target);

/// Roles in the order in which they are worth a plan: of every stage rank first those of which none
/// is alike, and of these first the ones that own most. As many as `most` allows, but of each stage
/// rank the two that own most and least.
std::vector<RankRole> roles_to_plan(std::vector<RankRole> roles, std::size_t most);

/// What a rank of a role needs.
struct RoleMemory {
  int rank = 0, count = 0;
  std::uint64_t peak_bytes = 0, extent_bytes = 0;
  Peak step;  // of a step, by category
};

/// What the ranks of a layout need, from the fullest one down.
struct RoleSurvey {
  std::vector<RoleMemory> roles;  // those that were planned
  std::size_t num_roles = 0;      // all that there are

  const RoleMemory& fullest() const { return roles.front(); }
  const RoleMemory& emptiest() const { return roles.back(); }
};

/// Plans at most about so many roles (roles_to_plan).
inline constexpr std::size_t kMostRoles = 64;

/// Plans a rank of each role; `fullest` becomes the plan of the one that needs most memory.
RoleSurvey survey_roles(const engine::EngineOptions& options, std::int64_t samples_per_step,
                        engine::Target target, Plan& fullest, std::size_t most = kMostRoles);

}  // namespace llmtrain::plan
