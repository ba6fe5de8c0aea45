#pragma once
/// What kernels/cuda uses of NCCL, with the values of NCCL 2, for the emulated GPU: fake_nccl.cpp.

#include <cstddef>
#include <cuda_runtime.h>

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclInProgress = 7,
};
enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3 };
enum ncclDataType_t {
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

#define FAKE_NCCL extern "C" __attribute__((visibility("default")))
FAKE_NCCL ncclResult_t ncclGetVersion(int* version);
FAKE_NCCL const char* ncclGetErrorString(ncclResult_t result);
FAKE_NCCL const char* ncclGetLastError(ncclComm_t group);
FAKE_NCCL ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
FAKE_NCCL ncclResult_t ncclCommInitRank(ncclComm_t* group, int size, ncclUniqueId id, int rank);
FAKE_NCCL ncclResult_t ncclCommDestroy(ncclComm_t group);
FAKE_NCCL ncclResult_t ncclCommGetAsyncError(ncclComm_t group, ncclResult_t* error);
FAKE_NCCL ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count,
                                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t group,
                                     cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count,
                                     ncclDataType_t type, ncclComm_t group, cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t group,
                                         cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclReduce(const void* in, void* out, std::size_t count,
                                  ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t group,
                                  cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count,
                                     ncclDataType_t type, int root, ncclComm_t group,
                                     cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclSend(const void* in, std::size_t count, ncclDataType_t type, int to,
                                ncclComm_t group, cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclRecv(void* out, std::size_t count, ncclDataType_t type, int from,
                                ncclComm_t group, cudaStream_t stream);
FAKE_NCCL ncclResult_t ncclGroupStart();
FAKE_NCCL ncclResult_t ncclGroupEnd();
