#pragma once
/// NCCL, loaded when ranks on GPUs first need it: the plugin works where it is not installed.
/// (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html)

#include <nccl.h>
#include <string>

namespace llmtrain::kernels::cuda {

/// The functions that are used.
struct NcclApi {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRank) init_rank = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;

  /// DeviceError with what the library says of the failure.
  void check(ncclResult_t result, const char* what) const;
};

/// The library, or why it is not used.
struct LoadedNccl {
  NcclApi api;
  std::string version;  // "2.28.9"; empty where there is none
  std::string problem;  // empty where it is used
};

/// Loads the file that the environment variable LLMTRAIN_NCCL names, or libnccl.so.2 where the
/// loader finds it. Loads once; never throws.
const LoadedNccl& load_nccl();

}  // namespace llmtrain::kernels::cuda
