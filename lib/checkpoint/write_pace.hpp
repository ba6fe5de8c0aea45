#pragma once
/// How fast a checkpoint is written beside a run.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

namespace llmtrain::checkpoint {

/// Holds a writer to so many bytes a second, so that the disk and the processor are left to the run
/// beside it, until somebody waits for the writer.
class WritePace {
 public:
  explicit WritePace(std::uint64_t bytes_per_second);

  /// Called by the writer behind each few bytes: returns when their time is over, and at once after
  /// hurry() or when `stop` is requested.
  void spend(std::uint64_t bytes, const std::stop_token& stop);
  /// Ends the limit for good. From any thread.
  void hurry();

 private:
  using Clock = std::chrono::steady_clock;

  double bytes_per_second_;
  std::mutex mutex_;
  std::condition_variable_any hurrying_;
  bool hurried_ = false;
  Clock::time_point free_at_;  // when the time of what was written is over
};

}  // namespace llmtrain::checkpoint
