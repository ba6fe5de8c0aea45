#pragma once
/// Steps that take memory as planned, or end the run.

#include <cstdint>
#include <limits>
#include <vector>

#include "lib/engine/engine.hpp"

namespace llmtrain::train {

class PlannedSteps {
 public:
  /// `trace` is the allocations of a planned step, in their order; `host_bytes` what updates on the
  /// host have of its memory (optim::HostUpdateFacts).
  explicit PlannedSteps(std::vector<AllocationEvent> trace, std::uint64_t host_bytes = 0)
      : trace_(std::move(trace)), host_bytes_(host_bytes) {}

  /// Engine::launch_step under comparison with the trace. An internal error naming the first
  /// difference: a plan that does not hold is a defect of this program, and a run that goes on
  /// would end in the dark.
  void launch(engine::Engine& engine, Device& device, const engine::StepBatch& batch,
              std::int64_t step, const engine::StepOptions& options);

  /// Steps that took memory as planned.
  std::int64_t count() const { return count_; }

 private:
  std::vector<AllocationEvent> trace_;
  std::uint64_t host_bytes_;
  std::int64_t count_ = 0;
};

}  // namespace llmtrain::train
