#include "kernels/cuda/copy_queue.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// An event behind what a stream has been given so far.
class StreamPoint final : public CopyQueue::Point {
 public:
  explicit StreamPoint(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "to make an event");
    if (const cudaError_t status = cudaEventRecord(event_, stream); status != cudaSuccess) {
      cudaEventDestroy(event_);
      check(status, "to record an event");
    }
  }
  /// What waits for it is queued, and keeps what it needs of it.
  ~StreamPoint() override { cudaEventDestroy(event_); }
  StreamPoint(const StreamPoint&) = delete;
  StreamPoint& operator=(const StreamPoint&) = delete;
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

void wait_for(cudaStream_t stream, const CopyQueue::Point& point) {
  check(cudaStreamWaitEvent(stream, static_cast<const StreamPoint&>(point).event()),
        "to wait for an event");
}

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
  return std::make_shared<const StreamPoint>(launches_);
}

void CudaCopyQueue::follow(const Point& point) {
  choose_device();
  wait_for(copies_, point);
}

std::shared_ptr<const CopyQueue::Point> CudaCopyQueue::queued() {
  choose_device();
  return std::make_shared<const StreamPoint>(copies_);
}

void CudaCopyQueue::hold_launches(const Point& point) {
  choose_device();
  wait_for(launches_, point);
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
