#pragma once
/// A step under way: what the loop knows when it launches it and tells when it settles it.

#include <chrono>
#include <cstdint>

#include "lib/engine/engine.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/data_metrics.hpp"
#include "lib/train/loop_options.hpp"

namespace llmtrain::train {

struct LaunchedStep {
  std::int64_t number = 0;
  std::uint64_t first_sample = 0;
  std::int64_t num_samples = 0;
  BatchShares shares;
  std::chrono::steady_clock::time_point begin;

  std::uint64_t end_sample() const {
    return first_sample + static_cast<std::uint64_t>(num_samples);
  }
};

/// Counts in `state` whether the step was finite, and warns when it was not. NumericError, naming
/// the step and its samples, when the recipe stops there; a step whose gradients overflowed in FP16
/// and whose loss scale could shrink is skipped whatever the recipe says, and does not count as one
/// in a row. No checkpoint holds a later step: saving
/// settles all steps first.
void count_non_finite(const LoopOptions& options, const LaunchedStep& step,
                      const engine::StepOutcome& outcome, LoopState& state);

}  // namespace llmtrain::train
