#include "lib/base/stop_request.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <limits>
#include <unistd.h>

#include "lib/base/activity.hpp"
#include "lib/base/patience.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

// Written by a handler, read by all threads: volatile would be a race between these.
std::atomic<int> g_signal{0};
std::atomic<bool> g_interrupted{false};  // by SIGINT
static_assert(std::atomic<int>::is_always_lock_free, "a handler may not take a lock");
std::atomic<double> g_stop_from{std::numeric_limits<double>::infinity()};

extern "C" void on_signal(int signal) {
  if (signal == SIGINT && g_interrupted.exchange(true)) ::_exit(128 + SIGINT);
  g_signal = signal;
}

[[noreturn]] void leave_with(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(static_cast<int>(ExitCode::preempted));
}

extern "C" void leave(int) { leave_with("stopped by a signal before the run began; run again\n"); }

extern "C" void leave_others(int) {
  leave_with(
      "stopped by a signal before the run began, perhaps the launcher's: why another rank ended "
      "stands above\n");
}

bool time_is_over() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count() >= g_stop_from;
}

void handle(void (*handler)(int)) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP}) {
    struct sigaction action {};
    // nohup's programs are left alone when their terminal goes.
    ::sigaction(signal, nullptr, &action);
    if (signal == SIGHUP && action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void leave_on_stop_signals(bool with_others) { handle(with_others ? leave_others : leave); }

void install_stop_handlers() {
  handle(on_signal);
  std::signal(SIGPIPE, SIG_IGN);
  notice_resumption();
}

int stop_signal() { return g_signal; }

void stop_from(double unix_seconds) { g_stop_from = unix_seconds; }

bool is_asked_to_stop() { return g_signal != 0 || time_is_over(); }

void stop_if_asked(std::string_view doing) {
  activity::tick();  // whoever asks is at work
  require<Stopped>(!time_is_over(),
                   "stopped by the end of its job's time while {}; nothing is lost, run again to "
                   "continue",
                   doing);
  const int signal = g_signal;
  if (signal == 0) return;
  fail<Stopped>("stopped by signal {} while {}; nothing is lost, run again to continue", signal,
                doing);
}

}  // namespace llmtrain
