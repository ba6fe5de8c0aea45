#pragma once
/// Ranks of one machine, whose memory they share.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "lib/train/peers.hpp"
#include "lib/train/planned_time.hpp"

namespace llmtrain::train {

/// What a rank needs, and what its machine has for all of its ranks.
struct RankNeed {
  std::string host;
  std::uint64_t bytes = 0, machine_bytes = 0;
};

/// What to tell people where the ranks of a machine together need more than it has.
std::optional<std::string> shared_memory_problem(std::span<const RankNeed> ranks);

/// Collective. DoesNotFitError, the same on all ranks, where on any machine all fit alone, but not
/// together. GPUs are divided beforehand, and a run.memory_limit of the recipe is each rank's own.
void check_shared_memory(const RunPlan& planned, const Recipe& recipe, const Peers& peers);

}  // namespace llmtrain::train
