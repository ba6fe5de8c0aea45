#pragma once
/// Looks after a process that stands still: what its threads were doing then is in the rank's log,
/// when others have named the rank, or a person wants to know.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>

#include "lib/train/signs_of_life.hpp"

namespace llmtrain::train {

/// A thread that, when nothing has gone on here (activity::ticks) for half of `patience`, writes
/// the call stacks of all threads into the rank's log, once for each such time; and whenever the
/// process gets SIGQUIT, which ends it no more. Eight seconds after `patience` it ends the process
/// with exit code 6: those who wait for it with a limit have told by then, but it may be alone, all
/// may stand still, or they wait without one (World::LongWait: before the first step, and while
/// checkpoints are read and written). A thread of its own does that, which touches no disk. A rank
/// that waits for another one does not stand still. A process that its system has stopped, or whose
/// machine has, cannot do that: it is the rank before it that misses its signs of life, says so and
/// ends the job.
class StallWatch {
 public:
  explicit StallWatch(std::chrono::duration<double> patience);
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  /// From here on gives and awaits them.
  void exchange(std::unique_ptr<SignsOfLife> signs);

 private:
  void look(const std::stop_token& stop);
  void end_in_time(const std::stop_token& stop);
  void look_at_next_rank();

  std::chrono::duration<double> patience_;
  std::mutex mutex_;
  std::unique_ptr<SignsOfLife> signs_;
  std::chrono::steady_clock::time_point heard_{};
  std::jthread thread_, last_resort_;
};

/// The same for a thread whose work all ranks wait for while they keep answering each other: to be
/// told now and then how far it has come. After half of `patience` without progress stacks go into
/// the rank's log, eight seconds after `patience` the job ends with exit code 6.
class WorkWatch {
 public:
  explicit WorkWatch(std::chrono::duration<double> patience);
  /// Nothing where there is no such work now.
  void look(std::optional<std::uint64_t> progress);

 private:
  std::chrono::duration<double> patience_;
  std::optional<std::uint64_t> seen_;
  std::chrono::steady_clock::time_point since_;
  bool told_ = false;
};

/// Into the rank's log: what this process is at, and its stacks.
void note_stacks(std::string_view why);

}  // namespace llmtrain::train
