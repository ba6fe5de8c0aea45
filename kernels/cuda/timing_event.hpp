#pragma once
/// A place in a stream, and when the device came to it.

#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// DeviceError from every call where the device cannot be used.
class TimingEvent {
 public:
  TimingEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "to make an event"); }
  ~TimingEvent() { cudaEventDestroy(event_); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "to record an event"); }
  /// Until the device has come to it.
  void wait() { check(cudaEventSynchronize(event_), "work that was timed"); }
  /// Both must have been waited for.
  double microseconds_since(const TimingEvent& begin) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "to read a time");
    return 1000.0 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace llmtrain::kernels::cuda
