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
    for (Staging& staging : staging_) {
      check(cudaHostAlloc(&staging.bytes, kStagingBytes, cudaHostAllocDefault),
            "to pin host memory");
      check(cudaEventCreateWithFlags(&staging.done, cudaEventDisableTiming), "to make an event");
    }
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
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  for (Staging& staging : staging_) {
    if (staging.done != nullptr) cudaEventDestroy(staging.done);
    if (staging.bytes != nullptr) cudaFreeHost(staging.bytes);
  }
  if (slab_ != nullptr) cudaFree(slab_);
}

void* CudaMemory::reserve(std::uint64_t capacity_bytes) {
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

CudaMemory::Staging& CudaMemory::next_staging() {
  Staging& staging = staging_[next_++ % kStagingBuffers];
  check(cudaEventSynchronize(staging.done), "to wait for a copy");
  return staging;
}

void CudaMemory::copy_to_host(void* host, const void* device, std::uint64_t bytes) {
  auto* to = static_cast<std::byte*>(host);
  const auto* from = static_cast<const std::byte*>(device);
  for (std::uint64_t done = 0; done < bytes; done += kStagingBytes) {
    const std::uint64_t part = std::min(kStagingBytes, bytes - done);
    Staging& staging = next_staging();
    check(cudaMemcpyAsync(staging.bytes, from + done, part, cudaMemcpyDeviceToHost, stream_),
          "a copy to the host");
    synchronize();
    std::memcpy(to + done, staging.bytes, part);
  }
}

void CudaMemory::copy_from_host(void* device, const void* host, std::uint64_t bytes) {
  auto* to = static_cast<std::byte*>(device);
  const auto* from = static_cast<const std::byte*>(host);
  for (std::uint64_t done = 0; done < bytes; done += kStagingBytes) {
    const std::uint64_t part = std::min(kStagingBytes, bytes - done);
    Staging& staging = next_staging();
    std::memcpy(staging.bytes, from + done, part);
    check(cudaMemcpyAsync(to + done, staging.bytes, part, cudaMemcpyHostToDevice, stream_),
          "a copy to the device");
    check(cudaEventRecord(staging.done, stream_), "to record an event");
  }
}

void CudaMemory::copy_on_device(void* to, const void* from, std::uint64_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
        "a copy on the device");
}

void CudaMemory::synchronize() { check(cudaStreamSynchronize(stream_), "the work on the GPU"); }

}  // namespace llmtrain::kernels::cuda
