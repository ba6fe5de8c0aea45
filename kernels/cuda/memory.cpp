#include "kernels/cuda/memory.hpp"

#include <algorithm>
#include <cstring>

#include "lib/base/require.hpp"
#include "lib/base/units.hpp"

namespace llmtrain::kernels::cuda {

void check(cudaError_t status, const char* what) {
  require<DeviceError>(status == cudaSuccess, "CUDA: {} failed: {}", what,
                       cudaGetErrorString(status));
}

CudaMemory::CudaMemory(int device) : device_(device) {
  check(cudaSetDevice(device), "to choose the device");
  try {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "to make a stream");
    to_device_.allocate();
    check(cudaHostAlloc(&read_, kReadBytes, cudaHostAllocDefault), "to pin host memory");
    products_ = open_library_products(device);
  } catch (...) {
    release();
    throw;
  }
}

CudaMemory::~CudaMemory() { release(); }

void CudaMemory::release() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  products_.reset();
  attention_ = {};
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (read_ != nullptr) cudaFreeHost(read_);
  if (slab_ != nullptr) cudaFree(slab_);
}

void* CudaMemory::reserve(std::uint64_t capacity_bytes) {
  check(cudaSetDevice(device_), "to choose the device");
  const cudaError_t status = cudaMalloc(&slab_, capacity_bytes);
  if (status != cudaSuccess) {
    cudaGetLastError();  // or the next launch reports it again
    std::size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "to ask for free memory");
    fail<DoesNotFitError>(
        "the GPU has no {} in one piece: {} of {} are free; end what else uses it, or lower "
        "run.memory_limit",
        format_bytes(capacity_bytes), format_bytes(free_bytes), format_bytes(total_bytes));
  }
  return slab_;
}

void CudaMemory::copy_to_host(void* host, const void* device, std::uint64_t bytes) {
  auto* to = static_cast<std::byte*>(host);
  const auto* from = static_cast<const std::byte*>(device);
  for (std::uint64_t done = 0; done < bytes; done += kReadBytes) {
    const std::uint64_t part = std::min(kReadBytes, bytes - done);
    check(cudaMemcpyAsync(read_, from + done, part, cudaMemcpyDeviceToHost, stream_),
          "a copy to the host");
    synchronize();
    std::memcpy(to + done, read_, part);
  }
}

void CudaMemory::copy_from_host(void* device, const void* host, std::uint64_t bytes) {
  to_device_.send(stream_, device, host, bytes);
}

void CudaMemory::copy_on_device(void* to, const void* from, std::uint64_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
        "a copy on the device");
}

void CudaMemory::synchronize() { check(cudaStreamSynchronize(stream_), "the work on the GPU"); }

}  // namespace llmtrain::kernels::cuda
