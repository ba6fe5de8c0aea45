#pragma once
/// What this process is at, for messages about a run that stands still.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain::activity {

/// "training", "saving"
void enter(std::string_view phase);
void at_step(std::int64_t step);
/// "training, after step 41"; "starting" before anybody has said anything.
std::string text();

using Ticks = std::atomic<std::uint64_t>;
/// While it lives, what goes on in the thread that made it counts in `ticks`, and is nothing of the
/// process: others tell whether its work stands still, and whether the rest does beside it. Null:
/// it is the process's.
class CountedThread {
 public:
  explicit CountedThread(Ticks* ticks);
  ~CountedThread();
  CountedThread(const CountedThread&) = delete;
  CountedThread& operator=(const CountedThread&) = delete;

 private:
  Ticks* before_;
};
/// Where this thread counts: a thread that works for it shall count there, too. Null: nowhere else.
Ticks* counted_in();

/// While it lives, what goes on in the thread that made it is nothing of the process: it tells
/// others of it.
class QuietThread {
 public:
  QuietThread();
  ~QuietThread();
  QuietThread(const QuietThread&) = delete;
  QuietThread& operator=(const QuietThread&) = delete;
};

/// While one lives, this process waits for others without a limit.
class EndlessWait {
 public:
  EndlessWait();
  ~EndlessWait();
  EndlessWait(const EndlessWait&) = delete;
  EndlessWait& operator=(const EndlessWait&) = delete;
};
bool waits_endlessly();

/// Something is going on; any thread says so at each kernel, exchange and file.
void tick();
/// How often that was.
std::uint64_t ticks();

}  // namespace llmtrain::activity
