// Of kernels/cuda/memory.cpp, of which these tests need no more.
#include "kernels/cuda/simt.cuh"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

void check(cudaError_t status, const char* what) {
  require<DeviceError>(status == cudaSuccess, "CUDA: {} failed: {}", what,
                       cudaGetErrorString(status));
}

}  // namespace llmtrain::kernels::cuda
