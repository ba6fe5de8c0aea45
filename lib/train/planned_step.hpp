#pragma once
/// A step that takes memory as planned, or ends the run.

#include <span>

#include "lib/engine/engine.hpp"

namespace llmtrain::train {

/// Engine::train_step under comparison with `trace`, the allocations of a planned step. An internal
/// error naming the first difference: a plan that does not hold is a defect of this program, and a
/// run that goes on would end in the dark. A step that is not finite ends early and is not held
/// against the plan.
engine::StepOutcome train_planned_step(engine::Engine& engine, Device& device,
                                       std::span<const AllocationEvent> trace,
                                       const engine::StepBatch& batch, std::int64_t step,
                                       double lr_factor);

}  // namespace llmtrain::train
