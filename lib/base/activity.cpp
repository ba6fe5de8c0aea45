#include "lib/base/activity.hpp"

#include <mutex>
#include <utility>

#include <fmt/format.h>

namespace llmtrain::activity {

namespace {

Ticks g_ticks{0};
std::atomic<int> g_endless_waits{0};
thread_local Ticks* t_ticks = nullptr;  // of a counted thread
thread_local bool t_quiet = false;

struct Activity {
  std::mutex mutex;
  std::string phase = "starting";
  std::int64_t step = 0;
};

Activity& current() {
  static Activity activity;
  return activity;
}

}  // namespace

CountedThread::CountedThread(Ticks* ticks) : before_(std::exchange(t_ticks, ticks)) {}
CountedThread::~CountedThread() { t_ticks = before_; }
Ticks* counted_in() { return t_ticks; }

EndlessWait::EndlessWait() { ++g_endless_waits; }
EndlessWait::~EndlessWait() { --g_endless_waits; }
bool waits_endlessly() { return g_endless_waits > 0; }

QuietThread::QuietThread() { t_quiet = true; }
QuietThread::~QuietThread() { t_quiet = false; }

void tick() {
  if (t_quiet) return;
  (t_ticks != nullptr ? *t_ticks : g_ticks).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t ticks() { return g_ticks.load(std::memory_order_relaxed); }

void enter(std::string_view phase) {
  Activity& now = current();
  const std::lock_guard lock(now.mutex);
  now.phase = phase;
  tick();
}

void at_step(std::int64_t step) {
  Activity& now = current();
  const std::lock_guard lock(now.mutex);
  now.step = step;
}

std::string text() {
  Activity& now = current();
  const std::lock_guard lock(now.mutex);
  return now.step == 0 ? now.phase : fmt::format("{}, after step {}", now.phase, now.step);
}

}  // namespace llmtrain::activity
