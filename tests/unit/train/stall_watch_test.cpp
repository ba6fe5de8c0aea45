// A thread whose work others wait for, as a sign of life of those who wait.
#include "lib/train/stall_watch.hpp"

#include <doctest/doctest.h>

#include "lib/base/activity.hpp"

namespace llmtrain::train {

TEST_CASE("who waits for a thread goes on as long as that does, and stands still with it") {
  WorkWatch watch(std::chrono::hours(1));
  const auto is_sign_of_life = [&](std::optional<std::uint64_t> progress) {
    const std::uint64_t before = activity::ticks();
    watch.look(progress);
    return activity::ticks() > before;
  };
  CHECK(is_sign_of_life(1));
  CHECK_FALSE(is_sign_of_life(1));
  CHECK(is_sign_of_life(2));
  CHECK_FALSE(is_sign_of_life(2));
  CHECK(is_sign_of_life(std::nullopt));
}

}  // namespace llmtrain::train
