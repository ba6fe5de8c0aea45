#pragma once
/// Collectives among GPUs by a library.

#include <memory>

#include "kernels/cuda/library_attention.hpp"
#include "kernels/cuda/simt.cuh"
#include "lib/tensor/device_group.hpp"

namespace llmtrain::kernels::cuda {

/// A member of a group: its device and the stream of its launches, which outlives the group.
struct LibraryGroupPlace {
  int device = 0;
  cudaStream_t launches = nullptr;
  DeviceGroupId id{};
  int rank = 0, size = 1;
};

LibraryVersion group_library_version();
/// DeviceError without a library.
DeviceGroupId new_library_group_id();
/// Waits for all members. DeviceError when they do not come together.
std::unique_ptr<DeviceGroup> join_library_group(const LibraryGroupPlace& place);

}  // namespace llmtrain::kernels::cuda
