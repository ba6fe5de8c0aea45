#include "lib/train/planned_step.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::train {

void PlannedSteps::launch(engine::Engine& engine, Device& device, const engine::StepBatch& batch,
                          std::int64_t step, const engine::StepOptions& options) {
  device.ledger().start_comparison(trace_);
  engine.launch_step(batch, step, options);
  const auto difference = device.ledger().stop_comparison();
  require(!difference, "step {}: allocations differ from the plan's at {}", step,
          difference ? to_string(*difference) : "");
  ++count_;
}

}  // namespace llmtrain::train
