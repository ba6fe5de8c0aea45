#include "lib/checkpoint/check_progress.hpp"

namespace llmtrain::checkpoint {

void CheckProgress::begin(std::string_view file) {
  const std::lock_guard lock(mutex_);
  file_ = file;
  passed_ = 0;
  moved_.notify_all();
}

void CheckProgress::pass(std::uint64_t end) {
  const std::lock_guard lock(mutex_);
  passed_ = end;
  moved_.notify_all();
}

void CheckProgress::await(std::string_view file, std::uint64_t end) const {
  std::unique_lock lock(mutex_);
  moved_.wait(lock, [&] { return file_ != file || passed_ >= end; });
}

}  // namespace llmtrain::checkpoint
