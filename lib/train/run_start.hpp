#pragma once
/// What a run finds and leaves before its first step.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lib/checkpoint/store.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/device.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/run_status.hpp"

namespace llmtrain::train {

/// The store in the run's `directory`; rank 0 writes its own files. Collective.
checkpoint::CheckpointStore open_checkpoints(const Recipe& recipe, const Peers& peers,
                                             const std::filesystem::path& directory);

RunIdentity identity_of(const Recipe& recipe, const Corpus& corpus, std::uint64_t epoch_size,
                        std::string product_choices);

struct NewestCheckpoint {
  std::optional<std::uint64_t> step;  // of the newest valid one
  std::int64_t newer_and_not_valid = 0;
};

/// As rank 0 finds; what is not valid is said. Collective.
NewestCheckpoint newest_valid(const Peers& peers, const checkpoint::CheckpointStore& store);

/// The same of a run that begins. Collective. CheckpointError when there is none and
/// the recipe, or what is not valid, forbids to begin; RecipeError when there is one and the recipe
/// wants none; what check_first_weights throws when there is none.
NewestCheckpoint newest_checkpoint(const Recipe& recipe, const Peers& peers,
                                   const checkpoint::CheckpointStore& store);

/// From here on this rank's messages go into logs/rank-N.log, too.
void open_rank_log(const std::filesystem::path& directory, const JobPlace& place);

/// On rank 0, behind newest_checkpoint: the start's line in starts.jsonl, and status.json from here
/// on. NoProgressError when more than `max_restarts` of this job have brought the run no further,
/// nor the data that are being prepared in `cache`; that is no start then.
void begin_start(const JobPlace& place, const NewestCheckpoint& newest, std::int64_t max_restarts,
                 const std::filesystem::path& cache, const std::filesystem::path& directory,
                 StatusFile& status);

/// The device as this rank's place on the mesh.
engine::EnginePlace place_in_job(RunDevice& device, const Recipe& recipe, const Peers& peers);

/// Says which launches a device that can record does not, and why.
void log_launches(const Device& device, const plan::Plan& plan);

/// Says which keys of `run` that the recipe changes do nothing on this device: a recipe for a GPU
/// is tried on a CPU as it is, but not without a word.
void log_idle_keys(const Recipe& recipe, DeviceKind device);

/// environment.json: build, machine of each rank, variables that launchers and libraries go by.
/// Collective; rank 0 writes.
void write_environment(const std::filesystem::path& directory, const Peers& peers);

/// The run's directory as far as it is there before the first step: resolved recipe, tokenizer,
/// facts, plan, choices of products and the report of cleaning.
void write_start(const std::filesystem::path& directory, const Recipe& recipe,
                 const RunPlan& planned, const RunIdentity& identity, const Corpus& corpus);

}  // namespace llmtrain::train
