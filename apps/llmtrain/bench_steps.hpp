#pragma once
/// Steps that `bench` runs and times.

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/plan/fma_sampler.hpp"
#include "lib/plan/gpu_rates.hpp"
#include "lib/plan/kernel_clock.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::app {

/// Bytes of a GPU.
struct GpuMemory {
  std::uint64_t planned = 0, arena = 0;
  /// One past the highest byte of the arena that was ever in use.
  std::uint64_t reached = 0;
  /// By the driver, of all processes, with the engine and its recorded launches there.
  std::uint64_t in_use = 0;
};

struct MeasuredSteps {
  std::vector<plan::FmaSampler::Stretch> steps;
  std::vector<plan::KernelTime> kernels;  // of all steps together
  std::vector<double> memory_rates;       // bytes per second, before and after each step
  std::int64_t clocked_steps = 0;         // that `kernels` are of
  /// Of a GPU.
  std::optional<GpuMemory> memory;
  plan::CopyRate copy;  // the better one of before and after
};

/// Trains a new model for `steps` steps that count, on tokens of chance. With `planned_memory` a
/// GPU's arena has what the plan says.
MeasuredSteps measure_steps(const train::Recipe& recipe, const train::RunPlan& planned,
                            std::int64_t steps, bool planned_memory);

}  // namespace llmtrain::app
