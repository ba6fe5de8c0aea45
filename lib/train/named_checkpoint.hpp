#pragma once
/// Going back to an older checkpoint, which checkpoint.resume names or a bad step leads to: what
/// came after it is left without being lost.

#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/train/checkpoint_tiers.hpp"
#include "lib/train/peers.hpp"

namespace llmtrain::train {

/// "there are steps 2, 6": in `store` without `step`, for whom that one is of no use.
std::string other_steps_in(const checkpoint::CheckpointStore& store, std::uint64_t step);

/// On rank 0: whether the recipe names a step to which the run has to go back yet; said where an
/// earlier start of this Slurm job, which is started again with the same recipe, has done so.
bool goes_back_to(const Resume& resume, const CheckpointTiers& tiers);

/// The durable checkpoint of `step`, every byte of which all ranks have checked: a start that comes
/// to nothing changes nothing. Collective. CheckpointError, with the other steps that there are,
/// when it is missing or not valid; StorageError where this user may not read it.
NewestCheckpoint named_checkpoint(const Peers& peers, const CheckpointTiers& tiers,
                                  std::uint64_t step);

/// When the checkpoint `at` is loaded and before the run's files are cut there: from now on it is
/// the newest one, durable or local. Newer ones get other names; metrics and samples of their steps
/// stay in copies. Where storage fails what is local there are no local saves any more; unless what
/// was loaded is among them, they are never met again. Collective.
void set_newer_aside(const Peers& peers, CheckpointTiers& tiers, const std::filesystem::path& run,
                     const NewestCheckpoint& at);

/// On rank 0, of a run that begins where an earlier one has saved `step`, before its metrics and
/// samples are emptied: they stay in copies, which is said.
void keep_reports_of_lost_checkpoints(const std::filesystem::path& run, std::int64_t step);

/// On rank 0, behind that, of a step that the recipe names: what goes_back_to() asks.
void note_way_back(const CheckpointTiers& tiers, std::uint64_t step);

}  // namespace llmtrain::train
