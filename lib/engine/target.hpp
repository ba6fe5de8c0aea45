#pragma once
/// What a device is to a plan: everything that decides allocations and costs, without the device.

#include <cstdint>

#include "kernels/kernel.hpp"

namespace llmtrain::engine {

struct Target {
  DeviceKind device = DeviceKind::cpu;
  /// Of the CPU's kernels.
  int threads = 1;
  /// Reserved for each product and each attention of a library on a GPU.
  std::uint64_t library_workspace_bytes = 0;
  kernels::AttentionChoice attention = kernels::AttentionChoice::automatic;
};

/// The table of the meta device that stands for `device`: same workspaces, nothing runs.
const kernels::KernelTable& planning_table(DeviceKind device);

/// The CPU's kernels for this type: fp64 is computed by the reference.
const kernels::KernelTable& cpu_kernels(DType compute);

}  // namespace llmtrain::engine
