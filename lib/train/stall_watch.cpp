#include "lib/train/stall_watch.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <string>
#include <unistd.h>

#include "lib/base/activity.hpp"
#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/base/patience.hpp"
#include "lib/base/stacks.hpp"

namespace llmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> g_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Not all that is done before the first step ticks, as the first values of a large model.
constexpr double kBeyondDoubt = 5;

bool others_wait_without_limit() {
  const std::string now = activity::text();
  return !now.starts_with("training") && !now.starts_with("evaluating");
}

[[noreturn]] void end_job(const std::string& message) {
  log::error("{}, {:g} times resilience.hang_timeout", message, kBeyondDoubt);
  ::_exit(static_cast<int>(ExitCode::peer_lost));
}

[[noreturn]] void end_still_job(std::chrono::duration<double> silent) {
  end_job(
      fmt::format("nothing has gone on here for {:.1f} s ({}; what the threads were doing is in "
                  "this rank's log)",
                  silent.count(), activity::text()));
}

std::string still_for(std::chrono::duration<double> silent) {
  return fmt::format("nothing has gone on here for {:.1f} s", silent.count());
}

extern "C" void ask_for_stacks(int) { g_asked.store(true, std::memory_order_relaxed); }

}  // namespace

void note_stacks(std::string_view why) {
  log::note(fmt::format("{} ({}); the calls of its threads:\n{}", why, activity::text(),
                        thread_stacks()));
}

StallWatch::StallWatch(std::chrono::duration<double> patience) : patience_(patience) {
  struct sigaction action {};
  action.sa_handler = ask_for_stacks;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGQUIT, &action, nullptr);
  thread_ = std::thread([this] { look(); });
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ends_now_.notify_all();
  thread_.join();
}

void StallWatch::exchange(std::unique_ptr<SignsOfLife> signs) {
  const std::lock_guard lock(mutex_);
  signs_ = std::move(signs);
  heard_ = Clock::now();
}

void StallWatch::look_at_next_rank() {
  if (!signs_) return;
  signs_->give();
  if (signs_->heard()) {
    heard_ = Clock::now();
  } else if (waited_longer(heard_, kBeyondDoubt * patience_) && others_wait_without_limit()) {
    end_job(
        fmt::format("rank {} has given no sign of life for {:.1f} s: its process or its "
                    "machine stands still; this rank was {}",
                    signs_->next_rank(), waited_since(heard_).count(), activity::text()));
  }
}

void StallWatch::look() {
  using Seconds = std::chrono::duration<double>;
  const Seconds pause = std::clamp(patience_ / 8, Seconds(0.05), Seconds(1));
  std::uint64_t seen = activity::ticks();
  Clock::time_point since = Clock::now();
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!ends_now_.wait_for(lock, pause, [this] { return ends_; })) {
    if (g_asked.exchange(false)) note_stacks("asked by SIGQUIT");
    look_at_next_rank();
    const Seconds silent = waited_since(since);
    if (activity::ticks() != seen) {
      seen = activity::ticks();
      since = Clock::now();
      told = false;
    } else if (!told && silent >= patience_ / 2) {
      note_stacks(still_for(silent));
      told = true;
    } else if (silent >= kBeyondDoubt * patience_ && others_wait_without_limit()) {
      end_still_job(silent);
    }
  }
}

WorkWatch::WorkWatch(std::chrono::duration<double> patience)
    : patience_(patience), since_(Clock::now()) {}

void WorkWatch::look(std::optional<std::uint64_t> progress) {
  if (!progress || progress != seen_) {
    seen_ = progress;
    since_ = Clock::now();
    told_ = false;
    return;
  }
  const std::chrono::duration<double> silent = waited_since(since_);
  if (!told_ && silent >= patience_ / 2) {
    note_stacks(still_for(silent));
    told_ = true;
  }
  if (silent >= kBeyondDoubt * patience_) end_still_job(silent);
}

}  // namespace llmtrain::train
