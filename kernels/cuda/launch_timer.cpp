#include "kernels/cuda/launch_timer.hpp"

#include "lib/base/require.hpp"

namespace llmtrain::kernels::cuda {

void EventTimer::mark() {
  if (marks_ == events_.size()) events_.emplace_back();
  events_[marks_++].record(stream_);
}

std::vector<double> EventTimer::take() {
  require(marks_ % 2 == 0, "a launch that is timed has begun and not ended");
  std::vector<double> seconds;
  if (marks_ == 0) return seconds;
  events_[marks_ - 1].wait();
  for (std::size_t i = 0; i < marks_; i += 2) {
    seconds.push_back(1e-6 * events_[i + 1].microseconds_since(events_[i]));
  }
  marks_ = 0;
  return seconds;
}

}  // namespace llmtrain::kernels::cuda
