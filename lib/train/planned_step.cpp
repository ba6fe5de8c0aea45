#include "lib/train/planned_step.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::train {

engine::StepOutcome PlannedSteps::train(engine::Engine& engine, Device& device,
                                        const engine::StepBatch& batch, std::int64_t step,
                                        double lr_factor) {
  device.ledger().start_comparison(trace_);
  const engine::StepOutcome outcome = engine.train_step(batch, step, lr_factor);
  const auto difference = device.ledger().stop_comparison();
  require(!difference, "step {}: allocations differ from the plan's at {}", step,
          difference ? to_string(*difference) : "");
  ++count_;
  return outcome;
}

}  // namespace llmtrain::train
