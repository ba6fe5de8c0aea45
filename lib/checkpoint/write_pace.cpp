#include "lib/checkpoint/write_pace.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

namespace {
/// Longer than any run looks away, and a number that every clock can count.
constexpr std::chrono::duration<double> kLongestRest = std::chrono::hours(24);
}  // namespace

WritePace::WritePace(double share, Clock::time_point until) : share_(share), until_(until) {
  require(share > 0 && share <= 1, "a writer that works for {} of the time", share);
}

void WritePace::rest(Clock::duration worked, const std::stop_token& stop) {
  const Clock::time_point begin = Clock::now();
  const std::chrono::duration<double> needed =
      std::chrono::duration<double>(worked) * (1 / share_ - 1);
  const Clock::time_point end =
      begin + std::chrono::duration_cast<Clock::duration>(std::min(needed, kLongestRest));
  std::unique_lock lock(mutex_);
  hurrying_.wait_until(lock, stop, std::min(end, until_), [this] { return hurried_; });
  rested_ += Clock::now() - begin;
}

void WritePace::hurry() {
  {
    const std::lock_guard lock(mutex_);
    hurried_ = true;
  }
  hurrying_.notify_all();
}

double WritePace::rested_seconds() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(rested_).count();
}

}  // namespace llmtrain::checkpoint
