#include "lib/base/stop_request.hpp"

#include <atomic>
#include <csignal>
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
