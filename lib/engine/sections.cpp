#include "lib/engine/sections.hpp"

namespace llmtrain::engine {

void TrainingSection::validate(recipe::Issues& issues) const {
  const int lengths = max_steps().has_value() + max_tokens().has_value() + num_epochs().has_value();
  if (lengths != 1) {
    issues.add(max_steps, lengths == 0 ? "the run has no length: set one of max_steps, max_tokens "
                                         "and num_epochs"
                                       : "give one of max_steps, max_tokens and num_epochs, not "
                                         "several");
  }
  if (global_batch_size() % micro_batch_size() != 0) {
    issues.add(global_batch_size,
               fmt::format("{} samples are not a multiple of micro_batch_size {}",
                           global_batch_size().value, micro_batch_size().value));
  }
  if (!rampup_batch_size) return;
  const RampupSection& ramp = rampup_batch_size;
  if (ramp.start() % micro_batch_size() != 0 || ramp.increment() % micro_batch_size() != 0) {
    issues.add(ramp.start, fmt::format("start and increment must be multiples of micro_batch_size "
                                       "{}",
                                       micro_batch_size().value));
  }
  if (ramp.start() > global_batch_size() ||
      (global_batch_size() - ramp.start()) % ramp.increment() != 0) {
    issues.add(ramp.increment,
               fmt::format("steps of {} do not lead from {} to global_batch_size {}",
                           ramp.increment().value, ramp.start().value, global_batch_size().value));
  }
}

void ActivationCheckpointSection::validate(recipe::Issues& issues) const {
  if (k().has_value() != (mode() == RecomputeMode::every_k)) {
    issues.add(k, "k belongs to mode every_k, and every_k needs it");
  }
  if (ops().empty() == (mode() == RecomputeMode::selective)) {
    issues.add(ops, "ops belongs to mode selective, and selective needs it");
  }
}

}  // namespace llmtrain::engine
