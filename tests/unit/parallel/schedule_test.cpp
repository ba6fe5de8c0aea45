#include "lib/parallel/schedule.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"

namespace llmtrain::parallel {

TEST_CASE("every schedule of the table is valid for many shapes") {
  for (const ScheduleRow& row : schedules()) {
    for (const int stages : {1, 2, 3, 4, 8}) {
      for (const int micro_batches : {1, 2, 3, 7, 16}) {
        CAPTURE(row.name);
        CAPTURE(stages);
        CAPTURE(micro_batches);
        CHECK(check(row.make({stages, stages, micro_batches})) == "");
      }
    }
  }
}

TEST_CASE("1f1b holds at most as many micro-batches as stages remain") {
  const Schedule schedule = find_schedule("1f1b").make({4, 4, 12});
  for (int rank = 0; rank < 4; ++rank) {
    int held = 0;
    int most = 0;
    for (const Action& a : schedule.ranks[static_cast<std::size_t>(rank)]) {
      held += a.kind == ActionKind::forward ? 1 : -1;
      most = std::max(most, held);
    }
    CHECK(most == 4 - rank);
  }
}

TEST_CASE("the checker finds a missing, a doubled, a swapped and a blocking action") {
  const Schedule good = find_schedule("1f1b").make({2, 2, 4});

  Schedule missing = good;
  missing.ranks[1].pop_back();
  CHECK(check(missing) != "");

  Schedule doubled = good;
  doubled.ranks[0].push_back(doubled.ranks[0].front());
  CHECK(check(doubled) != "");

  Schedule swapped = good;
  std::swap(swapped.ranks[1][1], swapped.ranks[1][3]);
  CHECK(check(swapped) != "");

  Schedule blocked = good;
  std::rotate(blocked.ranks[0].begin(), blocked.ranks[0].begin() + 2, blocked.ranks[0].begin() + 3);
  CHECK(check(blocked).find("waits for ever") != std::string::npos);
}

}  // namespace llmtrain::parallel
