#include "lib/train/launched_step.hpp"

#include <cmath>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::train {

void count_non_finite(const LoopOptions& options, const LaunchedStep& step,
                      const engine::StepOutcome& outcome, LoopState& state) {
  if (outcome.finite) {
    state.skipped_in_a_row = 0;
    return;
  }
  if (outcome.update.overflowed) {
    ++state.skipped_steps;
    log::info("step {}: the gradients overflow at a loss scale of {}: update skipped, {} so far",
              step.number, outcome.update.loss_scale, state.skipped_steps);
    return;
  }
  const std::string what = fmt::format(
      "step {}: {} is not finite (samples {} to {})", step.number,
      std::isfinite(outcome.loss_sum + outcome.z_loss_sum) ? "the gradient norm" : "the loss",
      step.first_sample, step.end_sample() - 1);
  require<NumericError>(options.on_non_finite == NonFinite::skip,
                        "{}; resilience.on_non_finite is stop", what);
  ++state.skipped_steps;
  ++state.skipped_in_a_row;
  log::warning("{}: update skipped, {} so far", what, state.skipped_steps);
  require<NumericError>(state.skipped_in_a_row <= options.max_skipped_steps,
                        "step {}: {} steps in a row were not finite; "
                        "resilience.max_skipped_steps is {}",
                        step.number, state.skipped_in_a_row, options.max_skipped_steps);
}

}  // namespace llmtrain::train
