#pragma once
/// A GPU's memory and its compute stream.

#include <array>
#include <memory>

#include "kernels/cuda/library_matmul.hpp"
#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// One slab of device memory under the arena, and an in-order stream for launches and copies. Host
/// bytes travel by way of pinned buffers: the caller's may be used again as soon as a copy returns,
/// and the host waits only when all buffers are under way.
class CudaMemory final : public MemoryBackend {
 public:
  /// DeviceError when the device cannot be used.
  explicit CudaMemory(int device);
  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  /// DoesNotFitError, with what is free, when the device has not so much.
  void* reserve(std::uint64_t capacity_bytes) override;
  void copy_to_host(void* host, const void* device, std::uint64_t bytes) override;
  void copy_from_host(void* device, const void* host, std::uint64_t bytes) override;
  void copy_on_device(void* to, const void* from, std::uint64_t bytes) override;
  Stream compute_stream() override { return {stream_}; }
  void synchronize() override;

  int device() const { return device_; }
  /// Null without a library.
  LibraryProducts* products() const { return products_.get(); }

 private:
  static constexpr std::uint64_t kStagingBytes = 4 << 20;
  static constexpr std::size_t kStagingBuffers = 4;
  struct Staging {
    void* bytes = nullptr;
    cudaEvent_t done = nullptr;
  };
  /// The buffer after the last one; waits for what it carried before.
  Staging& next_staging();
  void release();

  int device_;
  cudaStream_t stream_ = nullptr;
  void* slab_ = nullptr;
  /// Opened before the slab takes what memory there is.
  std::unique_ptr<LibraryProducts> products_;
  std::array<Staging, kStagingBuffers> staging_{};
  std::size_t next_ = 0;
};

}  // namespace llmtrain::kernels::cuda
