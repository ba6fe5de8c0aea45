#include "kernels/cuda/copy_queue.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// An event behind the launches so far.
class LaunchPoint final : public CopyQueue::Point {
 public:
  explicit LaunchPoint(cudaStream_t launches) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "to make an event");
    if (const cudaError_t status = cudaEventRecord(event_, launches); status != cudaSuccess) {
      cudaEventDestroy(event_);
      check(status, "to record an event");
    }
  }
  /// The copies that wait for it are queued, and keep what they need of it.
  ~LaunchPoint() override { cudaEventDestroy(event_); }
  LaunchPoint(const LaunchPoint&) = delete;
  LaunchPoint& operator=(const LaunchPoint&) = delete;
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

CudaCopyQueue::CudaCopyQueue(int device, cudaStream_t launches)
    : device_(device), launches_(launches) {
  choose_device();
  check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "to make a stream");
}

CudaCopyQueue::~CudaCopyQueue() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(copies_);
  cudaStreamDestroy(copies_);
  for (void* memory : pinned_) cudaFreeHost(memory);
}

void CudaCopyQueue::choose_device() const { check(cudaSetDevice(device_), "to choose the device"); }

std::span<std::byte> CudaCopyQueue::pin(std::uint64_t bytes) {
  choose_device();
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "to pin host memory");
  pinned_.push_back(memory);
  return {static_cast<std::byte*>(memory), bytes};
}

std::shared_ptr<const CopyQueue::Point> CudaCopyQueue::launched() {
  choose_device();
  return std::make_shared<const LaunchPoint>(launches_);
}

void CudaCopyQueue::follow(const Point& point) {
  choose_device();
  check(cudaStreamWaitEvent(copies_, static_cast<const LaunchPoint&>(point).event()),
        "to wait for an event");
}

void CudaCopyQueue::to_host(void* pinned, const void* device, std::uint64_t bytes) {
  choose_device();
  check(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, copies_),
        "a copy to the host");
}

void CudaCopyQueue::to_device(void* device, const void* pinned, std::uint64_t bytes) {
  choose_device();
  check(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, copies_),
        "a copy to the device");
}

void CudaCopyQueue::finish() {
  choose_device();
  check(cudaStreamSynchronize(copies_), "the work on the GPU");
}

}  // namespace llmtrain::kernels::cuda
