#include "lib/base/stop_request.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

namespace llmtrain {

// In a process of its own, because a request holds for good. The thread sanitizer's build sees a
// flag that threads may not share.
TEST_CASE("every thread hears of a signal that any of them was sent") {
  const pid_t child = ::fork();
  if (child == 0) {
    install_stop_handlers();
    std::atomic<int> asked = 0, heard = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        try {
          while (true) {
            ++asked;
            stop_if_asked("waiting");
          }
        } catch (const Stopped&) {
          ++heard;
        }
      });
    }
    while (asked < 1000) std::this_thread::yield();
    ::raise(SIGUSR1);
    for (std::thread& thread : threads) thread.join();
    ::_exit(heard == 4 && stop_signal() == SIGUSR1 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("the end of a job's time asks like a signal, from then on") {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  stop_from(now + 1000);
  CHECK(!is_asked_to_stop());
  CHECK_NOTHROW(stop_if_asked("waiting"));
  stop_from(now);
  CHECK(is_asked_to_stop());
  CHECK_THROWS_WITH_AS(stop_if_asked("waiting"),
                       "stopped by the end of its job's time while waiting; nothing is lost, run "
                       "again to continue",
                       Stopped);
  stop_from(std::numeric_limits<double>::infinity());
  CHECK_NOTHROW(stop_if_asked("waiting"));
}

TEST_CASE("a terminal that goes asks to stop, but not where nohup has said otherwise") {
  const auto status_of = [](void (*before)(int)) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGHUP, before);
      leave_on_stop_signals(false);
      install_stop_handlers();
      ::raise(SIGHUP);
      ::_exit(stop_signal());
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  CHECK(status_of(SIG_DFL) == SIGHUP);
  CHECK(status_of(SIG_IGN) == 0);
}

TEST_CASE("a second SIGINT leaves at once, whatever other signals came between") {
  const pid_t child = ::fork();
  if (child == 0) {
    install_stop_handlers();
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) ::raise(signal);
    if (stop_signal() != SIGUSR1) ::_exit(1);
    ::raise(SIGINT);
    ::_exit(2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 128 + SIGINT);
}

}  // namespace llmtrain
