#pragma once
/// Ranks of one machine, whose memory and disk they share.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/train/peers.hpp"
#include "lib/train/planned_time.hpp"

namespace llmtrain::train {

/// What a rank needs, and what its machine has for all of its ranks.
struct RankNeed {
  std::string host;
  std::uint64_t bytes = 0, machine_bytes = 0;  // of memory or disk
};

/// What to tell people where the ranks of a machine together need more `of_what` than it has.
std::optional<std::string> shared_problem(std::span<const RankNeed> ranks,
                                          std::string_view of_what);

/// Collective. DoesNotFitError, the same on all ranks, where on any machine all fit alone, but not
/// together. GPUs are divided beforehand, and a run.memory_limit of the recipe is each rank's own.
void check_shared_memory(const RunPlan& planned, const Recipe& recipe, const Peers& peers);

/// Collective where ranks have updates or activations on the host. DoesNotFitError where a machine
/// has not the memory that these take on its ranks, one or all together, with that of their saves.
void check_host_memory(const plan::Plan& plan, const Peers& peers);

/// Likewise where the files of `offload`, of which each rank of a machine has its own, have no room
/// together on its disk, that of `directory`.
void check_shared_disk(const plan::Plan& plan, const std::filesystem::path& directory,
                       const Peers& peers);

}  // namespace llmtrain::train
