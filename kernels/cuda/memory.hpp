#pragma once
/// A GPU's memory and its compute stream.

#include <memory>

#include "kernels/cuda/attention_choices.hpp"
#include "kernels/cuda/library_matmul.hpp"
#include "kernels/cuda/staging.hpp"

namespace llmtrain::kernels::cuda {

/// One slab of device memory under the arena, and an in-order stream for launches and copies. Host
/// bytes travel to the device by way of a pinned ring, and the host waits only where that is full;
/// copies to the host wait for their result.
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
  std::unique_ptr<HostRead> make_host_read(std::uint64_t bytes) override;
  std::unique_ptr<CopyQueue> make_copy_queue() override;
  DeviceGroupId new_group_id() override;
  std::unique_ptr<DeviceGroup> join_group(const DeviceGroupId& id, int rank, int size) override;
  Stream compute_stream() override { return {stream_}; }
  bool can_record() const override { return true; }
  void begin_recording() override;
  std::unique_ptr<RecordedWork> end_recording() override;
  void synchronize() override;

  int device() const { return device_; }
  /// Null without a library.
  LibraryProducts* products() const { return products_.get(); }
  AttentionChoices& attention() { return attention_; }

 private:
  static constexpr std::uint64_t kReadBytes = 4 << 20;
  void release();

  int device_;
  cudaStream_t stream_ = nullptr;
  void* slab_ = nullptr;
  /// Opened before the slab takes what memory there is.
  std::unique_ptr<LibraryProducts> products_;
  AttentionChoices attention_;
  StagingRing to_device_;
  /// Pinned; what copy_to_host waits for lands here.
  void* read_ = nullptr;
};

}  // namespace llmtrain::kernels::cuda
