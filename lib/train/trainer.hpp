#pragma once
/// The loop around the engine: data, metrics, evaluation, checkpoints, signals.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "lib/base/error.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/comm/world.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/console.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/tensorboard.hpp"

namespace llmtrain::train {

/// Plans, prepares the data, trains and writes the report. `file` names the recipe in run.name.
/// Returns done, or preempted when a signal ended the run after a save. Other ends are exceptions.
/// As one rank of `world`, whose place is the recipe's job.
ExitCode run(const Recipe& recipe, const std::filesystem::path& file, World& world);

/// The same up to the first step, before which the run is saved; one that `run` goes on from.
ExitCode begin_run(const Recipe& recipe, const std::filesystem::path& file, World& world);

/// Loss and bits per byte on held-out text.
struct EvalReport {
  double loss_sum = 0;  // nats
  std::int64_t tokens = 0;
  std::optional<std::uint64_t> source_bytes = 0;  // of all held-out rows; empty: not known
  bool whole = true;                              // all held-out rows were evaluated

  double loss() const { return loss_sum / static_cast<double>(tokens); }
  /// Known only for the whole text, and if its bytes are.
  std::optional<double> bits_per_byte() const;
  EvalReport& operator+=(const EvalReport& other);
};

/// Evaluates each part on at most `max_samples` windows (all if empty); reports in the order of the
/// parts. DataError when a part's windows have no trained token. `batch` is where samples are read
/// to; its content is lost.
/// Collective: ranks that share samples share the windows. `stop`, if given, is asked by all ranks
/// before each pass; when it says yes, to all alike, there are no reports.
std::optional<std::vector<EvalReport>> evaluate(engine::Engine& engine,
                                                const std::vector<CorpusPart>& parts,
                                                std::optional<std::uint64_t> max_samples,
                                                engine::StepBatch& batch,
                                                const std::function<bool()>& stop = {});
/// The parts' reports as one.
EvalReport total(const std::vector<EvalReport>& reports);

}  // namespace llmtrain::train
