// Builds without NCCL: ranks exchange through host memory.
#include "kernels/cuda/library_group.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr const char* kProblem = "this build has no NCCL";

}  // namespace

LibraryVersion group_library_version() { return {.version = {}, .problem = kProblem}; }

DeviceGroupId new_library_group_id() { fail<DeviceError>("{}", kProblem); }

std::unique_ptr<DeviceGroup> join_library_group(const LibraryGroupPlace&) {
  fail<DeviceError>("{}", kProblem);
}

}  // namespace llmtrain::kernels::cuda
