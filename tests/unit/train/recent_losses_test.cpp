#include "lib/train/recent_losses.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

namespace llmtrain::train {

TEST_CASE("the median is that of the last losses up to a step, where there are enough") {
  RecentLosses losses;
  CHECK_FALSE(losses.median(100, 1).has_value());
  for (const auto& [step, loss] : {std::pair{1, 9.0}, {2, 5.0}, {4, 7.0}, {5, 1.0}}) {
    losses.add({step, loss}, 4);
  }
  CHECK(losses.median(5, 3) == 5.0);
  CHECK(losses.median(4, 3) == 7.0);
  CHECK(losses.median(3, 2) == 9.0);  // of an even number the larger one in the middle
  CHECK_FALSE(losses.median(3, 3).has_value());
  losses.add({6, 2.0}, 4);
  CHECK_FALSE(losses.median(6, 5).has_value());
  CHECK(losses.median(6, 4) == 5.0);
}

TEST_CASE("losses come back from their text with every bit; what is none is refused") {
  RecentLosses losses;
  losses.add({7, 0.1 + 0.2}, 9);
  losses.add({9, 1e-300}, 9);
  CHECK(RecentLosses::parse(losses.text(), "x") == losses);
  CHECK(RecentLosses::parse("", "x").empty());
  for (const char* text : {"7", "7 ", "7 1", "x 1\n", "7 1 2\n", "7\n1\n", "7 1\n8"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(RecentLosses::parse(text, "loop.x"),
                         "loop.x is no list of steps and losses", CheckpointError);
  }
}

}  // namespace llmtrain::train
