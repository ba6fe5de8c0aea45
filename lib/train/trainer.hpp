#pragma once
/// The loop around the engine: data, metrics, evaluation, checkpoints, signals.

#include <filesystem>
#include <memory>

#include "lib/base/error.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/console.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/tensorboard.hpp"

namespace llmtrain::train {

/// Plans, prepares the data, trains and writes the report. `file` names the recipe in run.name.
/// Returns done, or preempted when a signal ended the run after a save. Other ends are exceptions.
ExitCode run(const Recipe& recipe, const std::filesystem::path& file);

/// Loss, perplexity and bits per byte on the held-out text.
struct EvalReport {
  double loss = 0;           // nats per token
  double bits_per_byte = 0;  // of the source text of the evaluated rows
  std::int64_t tokens = 0;
  bool whole = true;  // all held-out rows were evaluated
};

/// Evaluates at most `max_samples` windows (all if empty). Bits per byte are known only for all.
/// `batch` is where samples are read to; its content is lost.
EvalReport evaluate(engine::Engine& engine, const data::EvalWindows& held_out,
                    std::optional<std::uint64_t> max_samples, engine::StepBatch& batch);

}  // namespace llmtrain::train
