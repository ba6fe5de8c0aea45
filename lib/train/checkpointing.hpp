#pragma once
/// Between the engine's tensors and the checkpoint store.

#include <cstdint>
#include <string>
#include <vector>

#include "lib/checkpoint/store.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/recent_losses.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Retention and size of files as the recipe asks for them.
checkpoint::StoreOptions store_options(const CheckpointSection& section);

/// What the loop itself must remember; a pure value.
struct LoopState {
  std::int64_t step = 0;  // finished steps
  std::uint64_t next_sample = 0;
  std::uint64_t trained_tokens = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t skipped_in_a_row = 0;
  std::int64_t rollbacks = 0;  // since the last save
  /// Of the last steps that applied, in their order; kept where spikes are looked for.
  RecentLosses recent_losses;
  double best_eval_loss = 0;  // 0 = none yet
  std::int64_t evals_without_progress = 0;
  double elapsed_seconds = 0;  // of training, over all attempts
  double durable_seconds = 0;  // of these, when the run was saved durably last
  /// Of this step. They are in the checkpoint because a step whose save is due is reported only
  /// after the save.
  std::vector<StepRecord> records;

  bool operator==(const LoopState&) const = default;
};

/// Key of LoopState::records in the checkpoint's state: lines as metrics.jsonl has them.
inline constexpr std::string_view kRecordsKey = "loop.records";

/// What identifies the run that a checkpoint belongs to.
struct RunIdentity {
  std::uint64_t seed = 0;
  std::uint64_t epoch_size = 0;  // samples
  std::string data_fingerprint;
  std::string recipe;  // resolved
  std::map<std::string, std::string> environment;
  /// Of tune_products(): a run that resumes multiplies as it did; empty on the CPU.
  std::string product_choices;
};

/// The loop's state, and everything else of a checkpoint that is no tensor.
checkpoint::RunState run_state(engine::Engine& engine, const LoopState& state,
                               const RunIdentity& identity);

/// Restores the engine and returns the loop's state. What `handover` brings, if there is one, is
/// not read again. CheckpointError when tensors differ from the engine's or the data is not the
/// run's.
LoopState load_checkpoint(const checkpoint::CheckpointStore& store, std::uint64_t step,
                          engine::Engine& engine, const RunIdentity& identity,
                          checkpoint::Handover* handover = nullptr);

/// RunIdentity::product_choices of a checkpoint; empty when it has none.
std::string saved_product_choices(const checkpoint::CheckpointStore& store, std::uint64_t step);

/// CheckpointError, naming keys and values, where tensors of the same shapes would compute
/// something else by this recipe than by the checkpoint's: other heads, another epsilon of norms.
void check_same_function(const checkpoint::CheckpointStore& store, std::uint64_t step,
                         const Recipe& now);

/// RecipeError, with the number of steps that would do, where a length in tokens or epochs would be
/// counted as if the steps so far had today's batches, and they had others.
void check_same_batches(const checkpoint::CheckpointStore& store, std::uint64_t step,
                        const Recipe& now);

/// A recipe may change between two attempts; this says which keys did since the checkpoint.
void log_changed_keys(const checkpoint::CheckpointStore& store, std::uint64_t step,
                      const Recipe& now);

}  // namespace llmtrain::train
