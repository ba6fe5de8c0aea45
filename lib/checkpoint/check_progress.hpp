#pragma once
/// How far the check of a checkpoint's bytes has come, for who loads the same files beside it: read
/// right behind the check they come out of the page cache, and the disk is read once, straight on.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace llmtrain::checkpoint {

class CheckProgress {
 public:
  /// Of the checker, of which one file is read at a time, from its beginning.
  void begin(std::string_view file);
  /// Its bytes below `end` were read.
  void pass(std::uint64_t end);
  /// It reads no file any more; also where it gave up.
  void finish() { begin(""); }

  /// Returns once bytes below `end` were read of the file that is being checked; at once of any
  /// other one.
  void await(std::string_view file, std::uint64_t end) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable moved_;
  std::string file_;
  std::uint64_t passed_ = 0;
};

}  // namespace llmtrain::checkpoint
