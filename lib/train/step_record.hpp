#pragma once
/// What a step's record says of the step and of the steps since the last record.

#include <cstdint>
#include <string>

#include "lib/train/checkpointing.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/launched_step.hpp"
#include "lib/train/loop_options.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/throughput.hpp"

namespace llmtrain::train {

struct SettledStep {
  const LoopState& state;  // after it
  const LaunchedStep& step;
  const engine::StepOutcome& outcome;
  const Corpus& corpus;
  const engine::EngineOptions& options;
  const Peak& peak;              // of memory
  const Throughput& unrecorded;  // steps since the last record
  const RunPlan& planned;
  const LoopOptions& loop;
  std::int64_t total_steps;
};

StepRecord record_of_step(const SettledStep& settled);

/// Whether an evaluation of the state's step was due and was given up: a run that goes on from
/// there makes it. `finished`: of all, the last.
bool evaluation_is_missing(const LoopOptions& options, const LoopState& state, bool finished);

/// What a run says that goes on from its end.
std::string nothing_left(std::int64_t step, std::int64_t total_steps, bool out_of_time,
                         bool out_of_patience);

}  // namespace llmtrain::train
