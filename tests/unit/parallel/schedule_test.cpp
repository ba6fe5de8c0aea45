#include "lib/parallel/schedule.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

using test::for_each_shape;
using test::most_live;
using test::shape_of;

namespace {

std::vector<std::string> lines_of(const Schedule& schedule) {
  std::vector<std::string> lines;
  for (const auto& actions : schedule.ranks) {
    std::string& line = lines.emplace_back();
    for (const Action& action : actions) line += to_string(action) + " ";
  }
  return lines;
}

}  // namespace

TEST_CASE("every schedule of the table is valid for every shape that it takes") {
  for (const ScheduleRow& row : schedules()) {
    CAPTURE(row.name);
    const int shapes = for_each_shape(row, [&](const ScheduleShape& shape) {
      CAPTURE(shape.num_ranks);
      CAPTURE(shape.num_stages);
      CAPTURE(shape.num_micro_batches);
      CHECK(check(row.make(shape)) == "");
    });
    CHECK(shapes >= 100);
  }
}

TEST_CASE("v_half is valid for any costs, within its bound of live activations") {
  const ScheduleRow& row = find_schedule("v_half");
  for (const ActionCosts costs : {ActionCosts{1, 1.6, 0.4}, ActionCosts{3, 1, 7},
                                  ActionCosts{0.1, 0.3, 1e-9}, ActionCosts{1, 50, 1}}) {
    for (int p = 1; p <= 8; ++p) {
      for (const int m : {1, 2, p, 2 * p + 1, 29}) {
        CAPTURE(costs.input_grad);
        CAPTURE(p);
        CAPTURE(m);
        CHECK(check(row.make(shape_of(row, p, m, 2, costs))) == "");
      }
    }
  }
}

TEST_CASE("a schedule is a pure function of its shape") {
  for (const ScheduleRow& row : schedules()) {
    const ScheduleShape shape = shape_of(row, 4, 16, 2);
    CHECK(row.make(shape).ranks == row.make(shape).ranks);
  }
}

// The list itself, from its lines in the literature.
TEST_CASE("1f1b runs as many forwards ahead as there are ranks behind") {
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 3});
  const std::vector<std::string> lines = lines_of(schedule);
  CHECK(lines[0] == "F0@0 F1@0 B0@0 F2@0 B1@0 B2@0 ");
  CHECK(lines[1] == "F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 ");
}

TEST_CASE("eager_1f1b runs twice as many forwards ahead") {
  const Schedule schedule = find_schedule("eager_1f1b").make({2, 2, 4});
  const std::vector<std::string> lines = lines_of(schedule);
  CHECK(lines[0] == "F0@0 F1@0 F2@0 B0@0 F3@0 B1@0 B2@0 B3@0 ");
  CHECK(lines[1] == "F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 F3@1 B3@1 ");
}

TEST_CASE("interleaved_1f1b with one stage per rank is 1f1b") {
  for (const int m : {1, 4, 12}) {
    const ScheduleShape shape{.num_ranks = 4, .num_stages = 4, .num_micro_batches = m};
    CHECK(find_schedule("interleaved_1f1b").make(shape).ranks ==
          find_schedule("1f1b").make(shape).ranks);
  }
}

TEST_CASE("stages go round the ranks, or there and back") {
  const ScheduleShape shape{.num_ranks = 3, .num_stages = 6, .num_micro_batches = 6};
  CHECK(find_schedule("interleaved_1f1b").make(shape).rank_of_stage ==
        std::vector<int>{0, 1, 2, 0, 1, 2});
  for (const std::string_view name : {"zbv", "v_half", "dualpipev"}) {
    CHECK(find_schedule(name).make(shape).rank_of_stage == std::vector<int>{0, 1, 2, 2, 1, 0});
    CHECK(find_schedule(name).rank_of_stage(shape, 5) == 0);
  }
}

TEST_CASE("a shape that a schedule does not take is refused with the nearest that it takes") {
  const auto refusal = [](std::string_view name, ScheduleShape shape) {
    CHECK_THROWS_AS(find_schedule(name).make(shape), InternalError);
    return find_schedule(name).refusal(shape);
  };
  CHECK(refusal("1f1b", {4, 8, 8}) == "1f1b has 1 stage per rank: 4 stages on 4 ranks, not 8");
  CHECK(refusal("zbv", {1, 1, 8}) == "zbv has 2 stages per rank: 2 stages on 1 rank, not 1");
  CHECK(refusal("interleaved_1f1b", {4, 6, 8}) ==
        "interleaved_1f1b has equally many stages on each of 4 ranks: 4 or 8, not 6");
  CHECK(refusal("interleaved_1f1b", {4, 3, 8}) ==
        "interleaved_1f1b has equally many stages on each of 4 ranks: 4, not 3");
  CHECK(refusal("interleaved_1f1b", {4, 8, 11}) ==
        "interleaved_1f1b does not take 11 micro-batches on 4 ranks; take 10 or 12");
  CHECK(refusal("dualpipev", {4, 8, 1}) ==
        "dualpipev does not take 1 micro-batch on 4 ranks; take 8");
  CHECK_THROWS_AS(find_schedule("gpipe").make({2, 2, 0}), InternalError);
  CHECK_THROWS_AS(find_schedule("gpipe").make({2, 2, 1, {1, 1, 0}}), InternalError);
  CHECK_THROWS_AS(find_schedule("pipe"), InternalError);
}

// Live activations are counted in stages of one micro-batch.

TEST_CASE("1f1b holds as many micro-batches as stages remain (arXiv 2104.04473)") {
  for_each_shape(find_schedule("1f1b"), [](const ScheduleShape& shape) {
    const std::vector<int> most = most_live(find_schedule("1f1b").make(shape));
    for (int r = 0; r < shape.num_ranks; ++r) {
      CHECK(most[static_cast<std::size_t>(r)] ==
            std::min(shape.num_ranks - r, shape.num_micro_batches));
    }
  });
}

// 2 (S - s) - 1 of stages s = 0 .. S - 1.
TEST_CASE("eager_1f1b holds one micro-batch less than twice as many (arXiv 2211.05322)") {
  for_each_shape(find_schedule("eager_1f1b"), [](const ScheduleShape& shape) {
    const std::vector<int> most = most_live(find_schedule("eager_1f1b").make(shape));
    for (int r = 0; r < shape.num_ranks; ++r) {
      CHECK(most[static_cast<std::size_t>(r)] ==
            std::min(2 * (shape.num_ranks - r) - 1, shape.num_micro_batches));
    }
  });
}

TEST_CASE("gpipe holds all micro-batches (arXiv 1811.06965)") {
  for (const int held : most_live(find_schedule("gpipe").make({4, 4, 12}))) CHECK(held == 12);
}

// The formula of Megatron-LM's estimate of memory: p (1 + (p - 1) / (p v)) whole ranks' worth.
TEST_CASE("interleaved_1f1b holds p v + p - 1 on rank 0 in rounds of p micro-batches") {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 2; v <= 4; ++v) {
      const Schedule schedule = find_schedule("interleaved_1f1b").make({p, p * v, 4 * p});
      CHECK(most_live(schedule).front() == p * v + p - 1);
      CHECK(std::ranges::max(most_live(schedule)) == p * v + p - 1);
    }
  }
}

TEST_CASE("zb_h1 holds p micro-batches on every rank, the peak of 1f1b (arXiv 2401.10241)") {
  for (int p = 1; p <= 8; ++p) {
    for (const int held : most_live(find_schedule("zb_h1").make({p, p, 2 * p}))) CHECK(held == p);
  }
}

TEST_CASE("zbv holds 2 p half stages on every rank, the peak of 1f1b (arXiv 2401.10241)") {
  for (int p = 1; p <= 8; ++p) {
    for (const int held : most_live(find_schedule("zbv").make({p, 2 * p, 4 * p}))) {
      CHECK(held == 2 * p);
    }
  }
}

// README of deepseek-ai/DualPipe: PP + 1, where PP = 2 p counts stages.
TEST_CASE("dualpipev holds 2 p + 1 half stages on every rank") {
  for (int p = 1; p <= 8; ++p) {
    for (const int held : most_live(find_schedule("dualpipev").make({p, 2 * p, 4 * p}))) {
      CHECK(held == 2 * p + 1);
    }
  }
}

// arXiv 2405.15362: floor((p + 2) / 2) micro-batches in flight, each with two half stages per rank.
TEST_CASE("v_half holds at most 2 floor((p + 2) / 2) half stages, half of 1f1b's peak") {
  for (int p = 1; p <= 8; ++p) {
    const Schedule schedule = find_schedule("v_half").make({p, 2 * p, 4 * p});
    CHECK(std::ranges::max(most_live(schedule)) <= 2 * ((p + 2) / 2));
    CHECK(std::ranges::max(most_live(schedule)) <= p + 2);
  }
}

// What a promise is worth: none is larger than what happens, where the shape fills the pipeline.
TEST_CASE("promised peaks of live activations are reached") {
  for (const ScheduleRow& row : schedules()) {
    for (int p = 1; p <= 8; ++p) {
      CAPTURE(row.name);
      CAPTURE(p);
      const Schedule schedule = row.make(shape_of(row, p, 4 * p, 2));
      if (row.name == "v_half") {
        CHECK(std::ranges::max(most_live(schedule)) == std::ranges::max(schedule.max_live));
      } else {
        CHECK(most_live(schedule) == schedule.max_live);
      }
    }
  }
}

}  // namespace llmtrain::parallel
