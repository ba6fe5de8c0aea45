#include "lib/train/planned_step.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::train {

engine::StepOutcome train_planned_step(engine::Engine& engine, Device& device,
                                       std::span<const AllocationEvent> trace,
                                       const engine::StepBatch& batch, std::int64_t step,
                                       double lr_factor) {
  device.ledger().start_comparison(trace);
  const engine::StepOutcome outcome = engine.train_step(batch, step, lr_factor);
  const auto difference = device.ledger().stop_comparison();
  require(!difference || !outcome.finite, "step {}: allocations differ from the plan's at {}", step,
          difference ? to_string(*difference) : "");
  return outcome;
}

}  // namespace llmtrain::train
