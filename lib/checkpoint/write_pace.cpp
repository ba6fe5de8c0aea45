#include "lib/checkpoint/write_pace.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

namespace {
/// What a writer that fell behind may make up for: a sleep that was too long, not a slow disk.
constexpr std::chrono::milliseconds kCredit{10};
}  // namespace

WritePace::WritePace(std::uint64_t bytes_per_second)
    : bytes_per_second_(static_cast<double>(bytes_per_second)), free_at_(Clock::now()) {
  require(bytes_per_second > 0, "a writer that may write nothing");
}

void WritePace::spend(std::uint64_t bytes, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (hurried_) return;
  const std::chrono::duration<double> time(static_cast<double>(bytes) / bytes_per_second_);
  free_at_ = std::max(free_at_, Clock::now() - kCredit) +
             std::chrono::duration_cast<Clock::duration>(time);
  hurrying_.wait_until(lock, stop, free_at_, [this] { return hurried_; });
}

void WritePace::hurry() {
  {
    const std::lock_guard lock(mutex_);
    hurried_ = true;
  }
  hurrying_.notify_all();
}

}  // namespace llmtrain::checkpoint
