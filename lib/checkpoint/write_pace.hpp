#pragma once
/// How much of the time a checkpoint is written beside a run.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace llmtrain::checkpoint {

/// Holds a writer to a share of the time, so that the disk and the processors are left to the run
/// beside it for the rest, however fast the disk is, until somebody waits for the writer or it is
/// late.
class WritePace {
 public:
  using Clock = std::chrono::steady_clock;

  /// `share` in (0, 1]. From `until` on there is no limit.
  explicit WritePace(double share, Clock::time_point until = Clock::time_point::max());

  /// Called by the writer behind each piece of its work, with the time that took: returns when it
  /// has rested as long as it must, and at once after hurry() or when `stop` is requested.
  void rest(Clock::duration worked, const std::stop_token& stop);
  /// Ends the limit for good. From any thread.
  void hurry();
  /// In all. From any thread.
  double rested_seconds() const;

 private:
  double share_;
  Clock::time_point until_;
  mutable std::mutex mutex_;
  std::condition_variable_any hurrying_;
  bool hurried_ = false;
  Clock::duration rested_{};
};

}  // namespace llmtrain::checkpoint
