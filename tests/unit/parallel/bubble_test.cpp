// Step times of the schedules against the formulas of their papers. Messages take no time.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "lib/parallel/simulator.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

using test::for_each_shape;
using test::shape_of;

// All costs here are whole numbers, so that sums are exact whatever their order.
constexpr ActionCosts kUnit{1, 1, 1};

double work_of_a_rank(const ScheduleShape& shape) {
  const ActionCosts& costs = shape.costs;
  return shape.stages_per_rank() * shape.num_micro_batches *
         (costs.forward + costs.input_grad + costs.weight_grad);
}

Simulation simulated(std::string_view name, const ScheduleShape& shape) {
  const Schedule schedule = find_schedule(name).make(shape);
  return simulate(schedule, uniform_work(schedule));
}

// Seconds of the step in which a rank does nothing, whichever rank.
double bubble(std::string_view name, const ScheduleShape& shape) {
  return simulated(name, shape).seconds - work_of_a_rank(shape);
}

}  // namespace

// (p - 1) (F + B): arXiv 1811.06965, arXiv 2104.04473 section 2.2.
TEST_CASE("gpipe and 1f1b, eager or not, idle p - 1 forwards and backwards, whatever these take") {
  for (const std::string_view name : {"gpipe", "1f1b", "eager_1f1b"}) {
    for_each_shape(find_schedule(name), [&](ScheduleShape shape) {
      const double p = shape.num_ranks, m = shape.num_micro_batches;
      CHECK(bubble(name, shape) == (p - 1) * 3);
      const Simulation simulation = simulated(name, shape);
      CHECK(std::abs(simulation.bubble_fraction - (p - 1) / (m + p - 1)) < 1e-14);
      for (const RankTimeline& rank : simulation.ranks) {
        CHECK(rank.bubble_fraction == 1 - 3 * m / (3 * (m + p - 1)));
      }
      shape.costs = {2, 7, 3};
      CHECK(bubble(name, shape) == (p - 1) * 12);
    });
  }
}

// (p - 1) (F + B) of one stage: a v-th of the rank's, hence (p - 1) / (v m + p - 1), arXiv
// 2104.04473 section 2.2. It assumes a micro-batch per rank and round; fewer leave each further
// stage waiting for the difference.
TEST_CASE("interleaved_1f1b idles p - 1 forwards and backwards of one of its stages") {
  for_each_shape(find_schedule("interleaved_1f1b"), [&](const ScheduleShape& shape) {
    const int p = shape.num_ranks, m = shape.num_micro_batches, v = shape.stages_per_rank();
    const int missing = std::max(0, p - m) * (v - 1);
    CHECK(bubble("interleaved_1f1b", shape) == 3 * (p - 1 + missing));
    if (m < p) return;
    const double fraction = (p - 1.0) / (v * m + p - 1.0);
    CHECK(std::abs(simulated("interleaved_1f1b", shape).bubble_fraction - fraction) < 1e-14);
  });
}

// (PP - 1) (F + B - 2 W), README of deepseek-ai/DualPipe, row ZB1P: with F = I = W a third of
// 1F1B's, arXiv 2401.10241 section 2.2. Of fewer micro-batches than ranks no W is there to fill the
// rest.
TEST_CASE("zb_h1 idles (p - 1) (F + I - W)") {
  for_each_shape(find_schedule("zb_h1"), [&](ScheduleShape shape) {
    const int p = shape.num_ranks, m = shape.num_micro_batches;
    CHECK(bubble("zb_h1", shape) == p - 1 + std::max(0, p - m));
    if (m < p) return;
    for (const ActionCosts costs : {ActionCosts{2, 3, 1}, ActionCosts{3, 4, 2}}) {
      shape.costs = costs;
      CHECK(bubble("zb_h1", shape) ==
            (p - 1) * (costs.forward + costs.input_grad - costs.weight_grad));
    }
  });
}

// arXiv 2401.10241 section 6: no rank idles between its first and its last action when F = I = W.
// The ranks begin one F after the other, and a step whose update waits for all ranks shows that.
TEST_CASE("zbv has no bubble inside a rank's step, and p - 1 half-stage forwards around it") {
  for_each_shape(find_schedule("zbv"), [&](const ScheduleShape& shape) {
    const int p = shape.num_ranks, m = shape.num_micro_batches;
    const int missing = std::max(0, 2 * p - 1 - m);
    CHECK(bubble("zbv", shape) == std::max(p - 1, 2 * missing));
    if (missing > 0) return;
    for (const RankTimeline& rank : simulated("zbv", shape).ranks) {
      CHECK(rank.actions.back().end - rank.actions.front().begin == rank.busy_seconds);
    }
  });
}

// (PP/2 - 1) (F&B + B - 3 W), README of deepseek-ai/DualPipe, where PP/2 is our p and F&B a pair.
// The formula counts the last rank's very first pair as one; run one after the other, as the
// authors' program does too, it lets the gradient go earlier.
TEST_CASE("dualpipev idles (p - 1) (F&B + B - 3 W)") {
  for_each_shape(find_schedule("dualpipev"), [&](ScheduleShape shape) {
    for (const ActionCosts costs : {kUnit, ActionCosts{2, 3, 1}, ActionCosts{4, 6, 2}}) {
      shape.costs = costs;
      Schedule schedule = find_schedule("dualpipev").make(shape);
      SimulationInput input = uniform_work(schedule);
      input.pair_fraction = 1;
      const double b = costs.input_grad + costs.weight_grad, pair = costs.forward + b;
      const double formula = (shape.num_ranks - 1) * (pair + b - 3 * costs.weight_grad);
      CHECK(simulate(schedule, input).seconds - work_of_a_rank(shape) <= formula);

      auto& last = schedule.ranks.back();
      const auto first_backward = std::ranges::find(last, ActionKind::backward, &Action::kind);
      (first_backward - 1)->overlaps_next = true;
      CHECK(check(schedule) == "");
      CHECK(simulate(schedule, input).seconds - work_of_a_rank(shape) == formula);
    }
  });
}

TEST_CASE("pairs that hide half of the smaller side save that much on every rank") {
  const Schedule schedule = find_schedule("dualpipev").make({4, 8, 16});
  SimulationInput input = uniform_work(schedule);
  const Simulation apart = simulate(schedule, input);
  input.pair_fraction = 0.75;
  const Simulation beside = simulate(schedule, input);
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto pairs =
        std::ranges::count_if(schedule.ranks[r], [](const Action& a) { return a.overlaps_next; });
    CHECK(pairs == 2 * (16 - 8) + static_cast<int>(r) + 1 + 4 - (r == 3 ? 1 : 0));
    CHECK(apart.ranks[r].busy_seconds - beside.ranks[r].busy_seconds ==
          0.25 * 3 * static_cast<double>(pairs));
  }
  CHECK(beside.seconds < apart.seconds);
}

// arXiv 2405.15362, and the README of sail-sg/zero-bubble-pipeline-parallelism: half of 1F1B's
// bubble, (p - 1) (F + I + W) / 2 of whole ranks' stages, with half of its activations.
TEST_CASE("v_half idles at most half as long as 1f1b with F = I = W") {
  for_each_shape(find_schedule("v_half"), [&](const ScheduleShape& shape) {
    if (shape.num_micro_batches < 2 * shape.num_ranks) return;
    CAPTURE(shape.num_ranks);
    CAPTURE(shape.num_micro_batches);
    CHECK(bubble("v_half", shape) <= (shape.num_ranks - 1) * 3);
  });
}

TEST_CASE("v_half ordered for its costs is shorter than ordered for equal ones") {
  for (const ActionCosts costs : {ActionCosts{10, 16, 4}, ActionCosts{10, 9, 11}}) {
    for (const int p : {4, 6, 8}) {
      const Schedule equal = find_schedule("v_half").make({p, 2 * p, 32});
      const Schedule fitted = find_schedule("v_half").make({p, 2 * p, 32, costs});
      CAPTURE(p);
      CAPTURE(costs.weight_grad);
      CHECK(simulate(fitted, uniform_work(fitted)).seconds <=
            simulate(equal, uniform_work(fitted)).seconds);
    }
  }
}

// An independent simulator's figures for 8 ranks and 32 micro-batches: F, I and W of a whole rank's
// work take 1 each; then 1, 1.6 and 0.4, as where attention costs about as much as the products.
TEST_CASE("bubbles of 8 ranks and 32 micro-batches are those of an independent simulation") {
  struct Row {
    std::string_view name;
    int stages_per_rank;
    double unit_seconds, uneven_bubble_percent;
  };
  for (const Row& row : {Row{"1f1b", 1, 117, 21.88}, Row{"interleaved_1f1b", 2, 106.5, 10.94},
                         Row{"interleaved_1f1b", 4, 101.25, 5.47}, Row{"zb_h1", 1, 103, 16.04},
                         Row{"zbv", 2, 99.5, 8.75}}) {
    CAPTURE(row.name);
    const double part = 1.0 / row.stages_per_rank;
    ScheduleShape shape =
        shape_of(find_schedule(row.name), 8, 32, row.stages_per_rank, {part, part, part});
    CHECK(simulated(row.name, shape).seconds == row.unit_seconds);
    shape.costs = {part, 1.6 * part, 0.4 * part};
    CHECK(std::abs(100 * bubble(row.name, shape) / 96 - row.uneven_bubble_percent) < 0.006);
  }
}

}  // namespace llmtrain::parallel
