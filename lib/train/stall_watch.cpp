#include "lib/train/stall_watch.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <future>
#include <string>
#include <system_error>
#include <unistd.h>

#include "lib/base/activity.hpp"
#include "lib/base/error.hpp"
#include "lib/base/log.hpp"
#include "lib/base/patience.hpp"
#include "lib/base/stacks.hpp"

namespace llmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

std::atomic<bool> g_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Behind the limit: others who have one of their own name a rank first, and say what they know.
constexpr Seconds kBeyondDoubt{8};

Seconds limit_of(Seconds patience) { return patience + kBeyondDoubt; }

/// Nobody else would miss a rank then.
bool others_wait_without_limit() {
  if (activity::waits_endlessly()) return true;
  const std::string now = activity::text();
  return !now.starts_with("training") && !now.starts_with("evaluating");
}

constexpr std::string_view kTooLong = "longer than resilience.hang_timeout allows";

[[noreturn]] void end_job(const std::string& text) {
  log::print("error: ", text);
  std::promise<void> noted;
  std::future<void> in_log = noted.get_future();
  try {
    std::thread([&] {
      log::note("error: " + text);
      noted.set_value();
    }).detach();
    in_log.wait_for(std::chrono::seconds(1));
  } catch (const std::system_error&) {  // no thread for it
  }
  ::_exit(static_cast<int>(ExitCode::peer_lost));
}

[[noreturn]] void end_still_job(Seconds silent) {
  end_job(
      fmt::format("nothing has gone on here for {:.1f} s, {} ({}; what the threads were doing is "
                  "in this rank's log)",
                  silent.count(), kTooLong, activity::text()));
}

std::string still_for(Seconds silent) {
  return fmt::format("nothing has gone on here for {:.1f} s", silent.count());
}

/// Waits a moment; false once the watch ends.
bool goes_on(const std::stop_token& stop, Seconds patience) {
  std::mutex mutex;
  std::condition_variable_any ends_now;
  std::unique_lock lock(mutex);
  const Seconds pause = std::clamp(patience / 8, Seconds(0.05), Seconds(1));
  ends_now.wait_for(lock, stop, pause, [] { return false; });
  return !stop.stop_requested();
}

/// Since when nothing has gone on here.
class Silence {
 public:
  Seconds now() {
    if (activity::ticks() != seen_) {
      seen_ = activity::ticks();
      since_ = Clock::now();
    }
    return waited_since(since_);
  }

 private:
  std::uint64_t seen_ = activity::ticks();
  Clock::time_point since_ = Clock::now();
};

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
  thread_ = std::jthread([this](const std::stop_token& stop) { look(stop); });
  last_resort_ = std::jthread([this](const std::stop_token& stop) { end_in_time(stop); });
}

void StallWatch::exchange(std::unique_ptr<SignsOfLife> signs) {
  const std::lock_guard lock(mutex_);
  signs_ = std::move(signs);
  heard_ = Clock::now();
}

void StallWatch::look_at_next_rank() {
  const std::lock_guard lock(mutex_);
  if (!signs_) return;
  signs_->give();
  signs_->look_at_others();
  if (signs_->heard()) {
    heard_ = Clock::now();
  } else if (waited_longer(heard_, limit_of(patience_)) && others_wait_without_limit()) {
    end_job(
        fmt::format("rank {} has given no sign of life for {:.1f} s, {}: its process or its "
                    "machine stands still; this rank was {}",
                    signs_->next_rank(), waited_since(heard_).count(), kTooLong, activity::text()));
  }
}

void StallWatch::look(const std::stop_token& stop) {
  Silence silence;
  bool told = false;
  while (goes_on(stop, patience_)) {
    if (g_asked.exchange(false)) note_stacks("asked by SIGQUIT");
    look_at_next_rank();
    const Seconds silent = silence.now();
    if (silent < patience_ / 2) {
      told = false;
    } else if (!told) {
      note_stacks(still_for(silent));
      told = true;
    }
  }
}

void StallWatch::end_in_time(const std::stop_token& stop) {
  Silence silence;
  while (goes_on(stop, patience_)) {
    const Seconds silent = silence.now();
    if (silent >= limit_of(patience_)) end_still_job(silent);
  }
}

WorkWatch::WorkWatch(std::chrono::duration<double> patience)
    : patience_(patience), since_(Clock::now()) {}

void WorkWatch::look(std::optional<std::uint64_t> progress) {
  if (!progress || progress != seen_) {
    activity::tick();
    seen_ = progress;
    since_ = Clock::now();
    told_ = false;
    return;
  }
  const Seconds silent = waited_since(since_);
  if (!told_ && silent >= patience_ / 2) {
    note_stacks(still_for(silent));
    told_ = true;
  }
  if (silent >= limit_of(patience_)) end_still_job(silent);
}

}  // namespace llmtrain::train
