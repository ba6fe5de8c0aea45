#include "lib/base/activity.hpp"

#include <thread>

#include <doctest/doctest.h>

namespace llmtrain::test {

TEST_CASE("what a counted thread does is its own and not the process's, what others do is that") {
  activity::Ticks own{0};
  const std::uint64_t before = activity::ticks();
  std::thread([&] {
    const activity::CountedThread counted(&own);
    activity::tick();
    std::thread([] { activity::tick(); }).join();
    activity::tick();
  }).join();
  CHECK(own == 2);
  CHECK(activity::ticks() == before + 1);
}

TEST_CASE("a process waits endlessly as long as anything in it does") {
  CHECK_FALSE(activity::waits_endlessly());
  {
    const activity::EndlessWait wait;
    { const activity::EndlessWait inner; }
    CHECK(activity::waits_endlessly());
  }
  CHECK_FALSE(activity::waits_endlessly());
}

TEST_CASE("what a thread does that only tells of the process is nothing of it") {
  const std::uint64_t before = activity::ticks();
  {
    const activity::QuietThread quiet;
    activity::tick();
    CHECK(activity::ticks() == before);
  }
  activity::tick();
  CHECK(activity::ticks() == before + 1);
}

}  // namespace llmtrain::test
