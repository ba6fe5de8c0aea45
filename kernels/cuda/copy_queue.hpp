#pragma once
/// Copies between a GPU and pinned host memory beside its compute stream.

#include <memory>
#include <vector>

#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// A stream of copies. Every call names the device anew, because the current one is a property of
/// the thread.
class CudaCopyQueue final : public CopyQueue {
 public:
  /// Beside `launches`, which outlives it. DeviceError when the stream cannot be made.
  CudaCopyQueue(int device, cudaStream_t launches);
  ~CudaCopyQueue() override;
  CudaCopyQueue(const CudaCopyQueue&) = delete;
  CudaCopyQueue& operator=(const CudaCopyQueue&) = delete;

  std::span<std::byte> pin(std::uint64_t bytes) override;
  std::shared_ptr<const Point> launched() override;
  void follow(const Point& point) override;
  std::shared_ptr<const Point> queued() override;
  void hold_launches(const Point& point) override;
  void to_host(void* pinned, const void* device, std::uint64_t bytes) override;
  void to_device(void* device, const void* pinned, std::uint64_t bytes) override;
  void finish() override;

 private:
  void choose_device() const;

  int device_;
  cudaStream_t launches_;
  cudaStream_t copies_ = nullptr;
  std::vector<void*> pinned_;
};

}  // namespace llmtrain::kernels::cuda
