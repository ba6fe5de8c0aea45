#pragma once
/// Whether the disks of a run's checkpoints have room for them.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lib/plan/plan.hpp"
#include "lib/train/checkpoint_section.hpp"

namespace llmtrain::train {

/// How many checkpoints of a run of `total_steps` are on the disk of run.output_dir at a time at
/// most, the one that is being written among them; empty where a clock or an unknown length
/// decides.
std::optional<std::uint64_t> most_checkpoints(const CheckpointSection& section,
                                              std::optional<std::int64_t> total_steps);

/// DoesNotFitError, or StorageError of a run that has checkpoints in `directory`, where there is no
/// room for 1.2 times the next one there or on the fast storage. A warning where there will be none
/// for as many as the recipe keeps.
void check_disk_room(const plan::Plan& plan, const CheckpointSection& section,
                     std::optional<std::int64_t> total_steps,
                     const std::filesystem::path& directory);

/// DoesNotFitError where there is no room for the files of this rank (`offload`).
void check_offload_room(const plan::Plan& plan, const std::filesystem::path& directory);

}  // namespace llmtrain::train
