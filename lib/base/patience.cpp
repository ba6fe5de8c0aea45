#include "lib/base/patience.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<Clock::rep> g_resumed{Clock::time_point::min().time_since_epoch().count()};
static_assert(std::atomic<Clock::rep>::is_always_lock_free, "a handler may not take a lock");

extern "C" void on_resumption(int) {
  g_resumed.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

}  // namespace

void notice_resumption() {
  struct sigaction action {};
  action.sa_handler = on_resumption;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGCONT, &action, nullptr);
}

std::chrono::duration<double> waited_since(Clock::time_point begin) {
  const Clock::time_point resumed{Clock::duration(g_resumed.load(std::memory_order_relaxed))};
  return Clock::now() - std::max(begin, resumed);
}

bool waited_longer(Clock::time_point begin, std::chrono::duration<double> limit) {
  // Of the threads of a process that goes on, one handles the signal, and others may be here first.
  constexpr std::chrono::milliseconds kHandled{10};
  if (waited_since(begin) <= limit) return false;
  std::this_thread::sleep_for(kHandled);
  return waited_since(begin) > limit;
}

}  // namespace llmtrain
