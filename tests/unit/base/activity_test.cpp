#include "lib/base/activity.hpp"

#include <thread>

#include <doctest/doctest.h>

namespace llmtrain::test {

TEST_CASE("what a counted thread does is the process's and its own, what others do is not its own") {
  activity::Ticks own{0};
  const std::uint64_t before = activity::ticks();
  std::thread([&] {
    const activity::CountedThread counted(own);
    activity::tick();
    std::thread([] { activity::tick(); }).join();
    activity::tick();
  }).join();
  CHECK(own == 2);
  CHECK(activity::ticks() == before + 3);
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
