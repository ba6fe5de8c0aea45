#include "lib/base/activity.hpp"

#include <mutex>

#include <fmt/format.h>

namespace llmtrain::activity {

namespace detail {
std::atomic<std::uint64_t> g_ticks{0};
}

namespace {

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
