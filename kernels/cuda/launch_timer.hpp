#pragma once
/// LaunchTimer by events of a stream.

#include <deque>

#include "kernels/backend.hpp"
#include "kernels/cuda/timing_event.hpp"

namespace llmtrain::kernels::cuda {

class EventTimer final : public LaunchTimer {
 public:
  explicit EventTimer(cudaStream_t stream) : stream_(stream) {}

  void begin() override { mark(); }
  void end() override { mark(); }
  std::vector<double> take() override;

 private:
  void mark();

  cudaStream_t stream_;
  /// Used again after each take(); an even one begins a launch, the next ends it.
  std::deque<TimingEvent> events_;
  std::size_t marks_ = 0;
};

}  // namespace llmtrain::kernels::cuda
