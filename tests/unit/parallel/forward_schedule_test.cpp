// Passes without gradients: forwards alone.
#include <algorithm>

#include <doctest/doctest.h>

#include "lib/parallel/simulator.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

using test::shape_of;

// Calls visit(row, schedule) for every row, up to 8 ranks, 3 stages per rank and 20 micro-batches.
template <class Visit>
void for_each_pass(const Visit& visit) {
  for (const ScheduleRow& row : schedules()) {
    for (int p = 2; p <= 8; ++p) {
      for (int v = 1; v <= (row.stages_per_rank > 0 ? 1 : 3); ++v) {
        for (const int m : {1, 2, 3, 7, 16, 20}) {
          const ScheduleShape shape = shape_of(row, p, m, v);
          CAPTURE(row.name);
          CAPTURE(p);
          CAPTURE(v);
          CAPTURE(m);
          visit(row, forward_schedule(row, shape));
        }
      }
    }
  }
}

double forward_seconds(const Schedule& schedule) {
  return simulate(schedule, uniform_work(schedule)).seconds;
}

}  // namespace

TEST_CASE("every stage has every micro-batch once, in order, on its rank") {
  for_each_pass([](const ScheduleRow& row, const Schedule& schedule) {
    const ScheduleShape& shape = schedule.shape;
    std::vector<int> next(static_cast<std::size_t>(shape.num_stages));
    for (int r = 0; r < shape.num_ranks; ++r) {
      for (const Action& action : schedule.ranks[static_cast<std::size_t>(r)]) {
        CHECK(action.kind == ActionKind::forward);
        CHECK(row.rank_of_stage(shape, action.stage) == r);
        CHECK(action.micro_batch == next[static_cast<std::size_t>(action.stage)]++);
      }
    }
    for (const int count : next) CHECK(count == shape.num_micro_batches);
  });
}

// Beside the first rank's work there is the way of a micro-batch through the other ranks, and where
// several stages share a rank a turn now and then in which nothing is ready.
TEST_CASE("ranks work at the same time: m v turns, and a few for the way through the stages") {
  for_each_pass([](const ScheduleRow&, const Schedule& schedule) {
    const ScheduleShape& shape = schedule.shape;
    const int work = shape.num_micro_batches * shape.stages_per_rank();
    const double seconds = forward_seconds(schedule);
    CHECK(seconds >= work + shape.num_ranks - 1);
    CHECK(seconds <= work + shape.num_stages);
    if (shape.stages_per_rank() == 1) CHECK(seconds == work + shape.num_ranks - 1);
  });
}

TEST_CASE("messages of forwards pass, and what was sent is given back soon") {
  for_each_pass([](const ScheduleRow&, const Schedule& schedule) {
    const MessagePlan plan = derive_forward_messages(schedule);
    CHECK(problems(schedule, plan).empty());
    for (const auto& steps : plan.steps) {
      int under_way = 0, most = 0;
      for (const MessageStep& step : steps) {
        under_way -= static_cast<int>(step.received.size() + step.sent.size());
        if (step.send >= 0) most = std::max(most, ++under_way);
      }
      CHECK(most <= schedule.shape.num_ranks * schedule.shape.stages_per_rank());
    }
  });
}

TEST_CASE("a send that is awaited before it is made is found") {
  const Schedule schedule = forward_schedule(find_schedule("zbv"), {2, 4, 3});
  MessagePlan plan = derive_forward_messages(schedule);
  REQUIRE(problems(schedule, plan).empty());
  plan.steps[0][0].sent.push_back(plan.steps[0][1].send);
  const auto found = problems(schedule, plan);
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("F1@0 on rank 0 to F1@1 on rank 1 is awaited before it is sent") !=
        std::string::npos);
}

// Rank 0 awaits F0@3 before F1@0, whose way to rank 2 leads over rank 1; and rank 2 posts the
// receive of F0@3 behind what comes that way.
TEST_CASE("a send that is awaited for ever is found") {
  using enum ActionKind;
  const Schedule schedule{
      .shape = {3, 5, 2},
      .rank_of_stage = {0, 1, 2, 0, 2},
      .ranks = {{{forward, 0, 0}, {forward, 3, 0}, {forward, 0, 1}, {forward, 3, 1}},
                {{forward, 1, 0}, {forward, 1, 1}},
                {{forward, 2, 0}, {forward, 2, 1}, {forward, 4, 0}, {forward, 4, 1}}}};
  MessagePlan plan = derive_messages(schedule);
  const int m = plan.steps[0][1].send;
  plan.steps[0][2].sent = {m};
  CHECK(problems(schedule, plan).empty());
  REQUIRE(plan.steps[2][1].receives == std::vector{m});
  std::swap(plan.steps[2][1].receives, plan.steps[2][2].receives);
  plan.steps[2][3].receives.swap(plan.steps[2][1].receives);
  const auto found = problems(schedule, plan);
  REQUIRE_FALSE(found.empty());
  CHECK(found[0] == "rank 0 waits for ever for the message from F0@3 on rank 0 to F0@4 on rank 2");
}

}  // namespace llmtrain::parallel
