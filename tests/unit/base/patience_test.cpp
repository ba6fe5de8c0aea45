#include "lib/base/patience.hpp"

#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

namespace llmtrain {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

TEST_CASE("who has waited longer than a limit has waited all that time") {
  const Clock::time_point begin = Clock::now();
  CHECK_FALSE(waited_longer(begin, Seconds(60)));
  std::this_thread::sleep_for(Seconds(0.05));
  CHECK(waited_since(begin) >= Seconds(0.05));
  CHECK(waited_longer(begin, Seconds(0.02)));
}

// In a process of its own, which the test stops and continues.
TEST_CASE("a process that was stopped has not waited meanwhile") {
  constexpr Seconds kStopped{1};
  const pid_t child = ::fork();
  if (child == 0) {
    notice_resumption();
    const Clock::time_point begin = Clock::now();
    ::raise(SIGSTOP);
    const bool waited = waited_longer(begin, kStopped / 2);
    ::_exit(!waited && Clock::now() - begin >= kStopped ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  REQUIRE(WIFSTOPPED(status));
  std::this_thread::sleep_for(kStopped);
  ::kill(child, SIGCONT);
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace llmtrain
