#pragma once
/// What a run finds and leaves before its first step.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "lib/engine/engine.hpp"
#include "lib/train/checkpoint_tiers.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/device.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/run_status.hpp"

namespace llmtrain::train {

RunIdentity identity_of(const Recipe& recipe, const Corpus& corpus, std::uint64_t epoch_size,
                        std::string product_choices);

/// Once rank 0 has the directory's lock: this rank's messages go into logs/rank-N.log from here on,
/// too, and rank 0 keeps status.json.
void take_directory(const JobPlace& place, const std::filesystem::path& directory,
                    StatusFile& status);

/// On rank 0, behind newest_checkpoint: the start's line in starts.jsonl, and what it begins with
/// in status.json. NoProgressError when more than `max_restarts` of this job have brought the run
/// no further, nor the data that are being prepared in `cache`; that is no start then.
void begin_start(const JobPlace& place, const NewestCheckpoint& newest, std::int64_t max_restarts,
                 const std::filesystem::path& cache, const std::filesystem::path& directory,
                 StatusFile& status);

/// The device as this rank's place on the mesh, with what `plan` says of its host.
engine::EnginePlace place_in_job(RunDevice& device, const Recipe& recipe, const plan::Plan& plan,
                                 const Peers& peers, const std::filesystem::path& directory);

/// Says which launches a device that can record does not, and why.
void log_launches(const Device& device, const plan::Plan& plan);

/// Says which products of a run in FP8 are quantized and what they multiply, and why; nothing in
/// other runs. `device_does`: as in engine::Target.
void log_fp8(const engine::Engine& engine, bool device_does);

/// Where optimizer states and activations are that are not in memory, and how they come; in the end
/// how many came, and how long updates, and products, waited for them.
void log_offload(engine::Engine& engine);
void log_offload_traffic(engine::Engine& engine);

/// Says which keys that the recipe changes do nothing with its layout.
void log_idle_layout_keys(const Recipe& recipe);
/// Says so of `offload.activations` where nothing of a step goes to the file.
void log_idle_offload(const Recipe& recipe, const plan::Plan& plan);
/// The same, and which keys of `run` do nothing on this device: a recipe for a GPU is tried on a
/// CPU as it is, but not without a word.
void log_idle_keys(const Recipe& recipe, DeviceKind device);

/// Says what makes the layout slow on the machines that the ranks are on. Collective.
void warn_of_places(const Recipe& recipe, const Peers& peers);

/// environment.json: build, machine of each rank, variables that launchers and libraries go by.
/// Collective; rank 0 writes.
void write_environment(const std::filesystem::path& directory, const Peers& peers);

/// The run's directory as far as it is there before the first step: resolved recipe, tokenizer,
/// facts, plan, choices of products and the report of cleaning.
void write_start(const std::filesystem::path& directory, const Recipe& recipe,
                 const RunPlan& planned, const RunIdentity& identity, const Corpus& corpus);

}  // namespace llmtrain::train
