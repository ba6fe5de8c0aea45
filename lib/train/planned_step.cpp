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
  if (const optim::HostUpdates* updates = engine.optimizer()->host_updates()) {
    const optim::HostUpdateFacts facts = updates->facts();  // less until a step has applied
    const std::uint64_t bytes = facts.memory_bytes + facts.pinned_bytes;
    require(bytes <= host_bytes_, "step {}: updates on the host take {} bytes, the plan's {}", step,
            bytes, host_bytes_);
  }
  ++count_;
}

}  // namespace llmtrain::train
