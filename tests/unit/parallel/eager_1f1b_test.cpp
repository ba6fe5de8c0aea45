// What eager_1f1b gains over 1f1b where messages take time, or stages are uneven.
#include <cmath>
#include <utility>

#include <doctest/doctest.h>

#include "lib/parallel/simulator.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

using test::shape_of;

// A micro-batch goes there and back once before the first backward of rank 0 and, as the last one,
// once behind its last forward: all other messages travel while ranks work. 1F1B waits for them.
TEST_CASE("eager_1f1b hides messages") {
  const auto seconds = [](std::string_view name, int ranks, int micro_batches, double latency) {
    const ScheduleRow& row = find_schedule(name);
    const Schedule schedule = row.make(shape_of(row, ranks, micro_batches, 1));
    SimulationInput input = uniform_work(schedule);
    input.link = [&](int, int) { return Link{.latency_seconds = latency}; };
    return simulate(schedule, input).seconds;
  };
  for (int p = 2; p <= 8; ++p) {
    for (const int m : {2 * p, 4 * p}) {
      CAPTURE(p);
      CAPTURE(m);
      const double exposed = 3 * (m + p - 1) + 2 * (p - 1) * 0.1;
      CHECK(std::abs(seconds("eager_1f1b", p, m, 0.1) - exposed) < 1e-12);
      CHECK(seconds("1f1b", p, m, 0.1) > exposed + 0.05 * (m - p));
    }
  }
}

// Rank 0 has 8 times 3 seconds to do, rank 1 2.4 for each. B0@1 has ended after 3.4 seconds: before
// that rank 0 does two forwards in 1F1B, and behind its last one waits for 0.4; or three.
TEST_CASE("eager_1f1b idles less where the first stage takes longest, by hand") {
  for (const auto& [name, expected] :
       {std::pair{"1f1b", 24 + 1.4 + 0.4}, std::pair{"eager_1f1b", 24 + 0.4}}) {
    CAPTURE(name);
    const Schedule schedule = find_schedule(name).make({2, 2, 8});
    SimulationInput input = uniform_work(schedule);
    input.stages[1].seconds = {0.8, 0.8, 0.8};
    CHECK(std::abs(simulate(schedule, input).seconds - expected) < 1e-12);
  }
}

}  // namespace llmtrain::parallel
