#pragma once
/// How ranks exchange the tensors of a run's device.

#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/train/device.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// By parallelism.gpu_collectives, alike on all ranks, and said: NCCL, or host memory and why.
/// Collective over the job; `device` outlives what the factory makes. DeviceError where the recipe
/// wants NCCL and a rank cannot.
CommunicatorFactory communicators_of(World& world, const RunDevice& device, const Recipe& recipe);

}  // namespace llmtrain::train
