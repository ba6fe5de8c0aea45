#include "lib/engine/sections.hpp"

namespace llmtrain::engine {

namespace {

void check_length(const TrainingSection& training, recipe::Issues& issues) {
  const int lengths = training.max_steps().has_value() + training.max_tokens().has_value() +
                      training.num_epochs().has_value();
  if (lengths == 1) return;
  issues.add(training.max_steps,
             lengths == 0 ? "the run has no length: set one of max_steps, max_tokens and num_epochs"
                          : "give one of max_steps, max_tokens and num_epochs, not several");
}

void check_micro_batches(const TrainingSection& training, recipe::Issues& issues) {
  if (training.global_batch_size() % training.micro_batch_size() == 0) return;
  issues.add(training.global_batch_size,
             fmt::format("{} samples are not a multiple of micro_batch_size {}",
                         training.global_batch_size().value, training.micro_batch_size().value));
}

void check_ramp(const TrainingSection& training, recipe::Issues& issues) {
  if (!training.rampup_batch_size) return;
  const RampupSection& ramp = training.rampup_batch_size;
  const recipe::Count micro = training.micro_batch_size();
  const recipe::Count global = training.global_batch_size();
  if (ramp.start() % micro != 0 || ramp.increment() % micro != 0) {
    issues.add(
        ramp.start,
        fmt::format("start and increment must be multiples of micro_batch_size {}", micro.value));
  }
  if (ramp.start() > global) {
    issues.add(ramp.start, fmt::format("is above global_batch_size {}", global.value));
  } else if ((global - ramp.start()) % ramp.increment() != 0) {
    issues.add(ramp.increment,
               fmt::format("steps of {} do not lead from {} to global_batch_size {}",
                           ramp.increment().value, ramp.start().value, global.value));
  }
}

}  // namespace

// Rule by rule: a value that was refused hides those that ask for it, not the others.
void TrainingSection::validate(recipe::Issues& issues) const {
  recipe::judge(issues, [&] { check_length(*this, issues); });
  recipe::judge(issues, [&] { check_micro_batches(*this, issues); });
  recipe::judge(issues, [&] { check_ramp(*this, issues); });
}

void PrecisionSection::validate(recipe::Issues& issues) const {
  if (master() == MasterForm::remainder && compute() != DType::bf16) {
    issues.add(master, "bf16+remainder completes bf16 parameters, which compute does not ask for",
               "set precision.compute: bf16, or master: fp32");
  }
  if (tf32() && compute() != DType::f32) {
    issues.add(tf32,
               fmt::format("rounds products of fp32, and compute is {}", to_string(compute())),
               "leave it out");
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
