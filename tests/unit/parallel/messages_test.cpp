#include "lib/parallel/messages.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

// "-0 F0@0 >0": receives posted, message awaited, action, message sent.
std::string lines(const Schedule& schedule, const MessagePlan& plan, int rank) {
  std::string text;
  const auto r = static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < schedule.ranks[r].size(); ++i) {
    const MessageStep& step = plan.steps[r][i];
    for (const int m : step.receives) text += "post " + std::to_string(m) + ", ";
    if (step.wait >= 0) text += "wait " + std::to_string(step.wait) + ", ";
    text += to_string(schedule.ranks[r][i]);
    if (step.send >= 0) text += ", send " + std::to_string(step.send);
    text += "; ";
  }
  return text;
}

}  // namespace

TEST_CASE("messages of 1f1b on two ranks, by hand") {
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 3});
  const MessagePlan plan = derive_messages(schedule);
  // 0 to 2 are the activations, 3 to 5 the gradients.
  REQUIRE(plan.messages.size() == 6);
  CHECK(lines(schedule, plan, 0) ==
        "F0@0, send 0; post 3, F1@0, send 1; wait 3, B0@0; post 4, F2@0, send 2; post 5, wait 4, "
        "B1@0; wait 5, B2@0; ");
  CHECK(lines(schedule, plan, 1) ==
        "post 0, wait 0, F0@1; post 1, B0@1, send 3; wait 1, F1@1; post 2, B1@1, send 4; wait 2, "
        "F2@1; B2@1, send 5; ");
}

TEST_CASE("messages cross ranks exactly where stages meet on different ranks") {
  for (const ScheduleRow& row : schedules()) {
    const ScheduleShape shape = test::shape_of(row, 4, 12, 3);
    const Schedule schedule = row.make(shape);
    int meetings = 0;
    for (int s = 0; s + 1 < shape.num_stages; ++s) {
      const auto at = static_cast<std::size_t>(s);
      meetings += schedule.rank_of_stage[at] != schedule.rank_of_stage[at + 1] ? 1 : 0;
    }
    CAPTURE(row.name);
    CHECK(derive_messages(schedule).messages.size() ==
          static_cast<std::size_t>(2 * meetings * shape.num_micro_batches));
  }
}

TEST_CASE("derived messages are right for every schedule, and for uneven costs") {
  for (const ScheduleRow& row : schedules()) {
    for (const ActionCosts costs :
         {ActionCosts{}, ActionCosts{1, 1.6, 0.4}, ActionCosts{1, 7, 3}}) {
      for (const int m : {1, 6, 8, 19}) {
        const ScheduleShape shape = test::shape_of(row, 4, m, 2, costs);
        if (!row.refusal(shape).empty()) continue;
        const Schedule schedule = row.make(shape);
        CAPTURE(row.name);
        CAPTURE(m);
        CHECK(problems(schedule, derive_messages(schedule)).empty());
      }
    }
  }
}

TEST_CASE("a receive is posted one action ahead, or with a later message of its channel") {
  int ahead = 0, sooner = 0;
  for (const ScheduleRow& row : schedules()) {
    if (row.name == "dualpipev") continue;  // has pairs
    const Schedule schedule = row.make(test::shape_of(row, 4, 16, 2));
    const MessagePlan plan = derive_messages(schedule);
    for (const auto& steps : plan.steps) {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        for (const int m : steps[i].receives) {
          const auto message = [&](int other) {
            return plan.messages[static_cast<std::size_t>(other)];
          };
          const int wanted = std::max(0, message(m).read_by.index - 1);
          if (static_cast<int>(i) == wanted) {
            ++ahead;
            continue;
          }
          ++sooner;
          CHECK(static_cast<int>(i) < wanted);
          CHECK(std::ranges::any_of(steps[i].receives, [&](int other) {
            return other > m && message(other).from_rank() == message(m).from_rank();
          }));
        }
      }
    }
  }
  CHECK(ahead > 500);
  CHECK(sooner > 0);
}

TEST_CASE("receives of a pair are posted before the action that precedes both") {
  const Schedule schedule = find_schedule("dualpipev").make({2, 4, 6});
  const MessagePlan plan = derive_messages(schedule);
  int seconds_of_pairs = 0;
  for (const Message& message : plan.messages) {
    const auto rank = static_cast<std::size_t>(message.to_rank());
    const int read_by = message.read_by.index;
    if (read_by < 2 || !schedule.ranks[rank][static_cast<std::size_t>(read_by - 1)].overlaps_next) {
      continue;
    }
    ++seconds_of_pairs;
    const int m = plan.steps[rank][static_cast<std::size_t>(read_by)].wait;
    const auto& posted = plan.steps[rank][static_cast<std::size_t>(read_by - 2)].receives;
    CHECK(std::ranges::find(posted, m) != posted.end());
  }
  CHECK(seconds_of_pairs > 4);
}

TEST_CASE("a message that is lost, sent twice or awaited by the wrong action is found") {
  const Schedule schedule = find_schedule("zbv").make({3, 6, 6});
  const MessagePlan good = derive_messages(schedule);
  const Message first = good.messages.front();
  const auto step = [](MessagePlan& plan, Position at) -> MessageStep& {
    return plan.steps[static_cast<std::size_t>(at.rank)][static_cast<std::size_t>(at.index)];
  };

  MessagePlan lost = good;
  step(lost, first.made_by).send = -1;
  CHECK(problems(schedule, lost) ==
        std::vector<std::string>{"the message from F0@0 on rank 0 to F0@1 on rank 1 is posted 1 "
                                 "times by its reader in time, awaited 1 times and sent 0 times"});

  MessagePlan unread = good;
  step(unread, first.read_by).wait = -1;
  CHECK(problems(schedule, unread).size() == 1);

  MessagePlan twice = good;
  step(twice, first.read_by).receives.push_back(0);
  CHECK(problems(schedule, twice).size() == 1);

  MessagePlan late = good;
  for (auto& s : late.steps[1]) std::erase(s.receives, 0);
  late.steps[1].back().receives.push_back(0);
  CHECK(problems(schedule, late).size() == 1);
}

TEST_CASE("a wait tells that what the other rank read before it made the message has arrived") {
  // Rank 0: F0 F1 B0 F2 B1 B2; rank 1: F0 B0 F1 B1 F2 B2.
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 3});
  const MessagePlan plan = derive_messages(schedule);
  const auto received = [&](std::size_t rank) {
    std::vector<std::vector<int>> all;
    for (const MessageStep& step : plan.steps[rank]) all.push_back(step.received);
    return all;
  };
  CHECK(received(0) == std::vector<std::vector<int>>{{}, {}, {0}, {}, {1}, {2}});
  CHECK(received(1) == std::vector<std::vector<int>>{{}, {}, {}, {}, {3}, {}});
}

TEST_CASE("a message that is taken for received too early, twice or by another rank is found") {
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 3});
  const MessagePlan good = derive_messages(schedule);
  REQUIRE(problems(schedule, good).empty());
  MessagePlan early = good;
  early.steps[0][4].received = {};
  early.steps[0][2].received = {0, 1};
  CHECK(problems(schedule, early) ==
        std::vector<std::string>{"the message from F1@0 on rank 0 to F1@1 on rank 1 is taken for "
                                 "received before B0@0 on rank 0"});
  MessagePlan untold = good;
  untold.steps[0][4].received = {};
  untold.steps[0][3].received = {0};
  CHECK(problems(schedule, untold).size() == 1);
  MessagePlan twice = good;
  twice.steps[0][4].received = {0, 1};
  CHECK(problems(schedule, twice).size() == 1);
  MessagePlan foreign = good;
  foreign.steps[1][4].received = {1};
  CHECK(problems(schedule, foreign).size() == 1);
}

TEST_CASE("a channel whose sides are posted in different orders is found") {
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 3});
  MessagePlan plan = derive_messages(schedule);
  plan.steps[1][0].receives = {1, 0};
  plan.steps[1][1].receives = {};
  const std::vector<std::string> found = problems(schedule, plan);
  REQUIRE(found.size() == 1);
  CHECK(found[0] ==
        "where rank 0 sends the message from F0@0 on rank 0 to F0@1 on rank 1, rank 1 receives the "
        "message from F1@0 on rank 0 to F1@1 on rank 1");
}

// Three ranks, each of which awaits what the one before it sends too late; every pair has one
// order.
TEST_CASE("a circle of ranks that wait for each other is found") {
  using enum ActionKind;
  const Schedule schedule{
      .shape = {3, 6, 1},
      .rank_of_stage = {0, 1, 2, 0, 1, 2},
      .ranks = {{{forward, 3, 0}, {forward, 0, 0}}, {{forward, 1, 0}}, {{forward, 2, 0}}}};
  const MessagePlan plan{.messages = {{.made_by = {0, 1}, .read_by = {1, 0}},
                                      {.made_by = {1, 0}, .read_by = {2, 0}},
                                      {.made_by = {2, 0}, .read_by = {0, 0}}},
                         .steps = {{{.receives = {2}, .wait = 2}, {.send = 0}},
                                   {{.receives = {0}, .wait = 0, .send = 1}},
                                   {{.receives = {1}, .wait = 1, .send = 2}}}};
  const std::vector<std::string> found = problems(schedule, plan);
  REQUIRE(found.size() == 3);
  CHECK(found[1] == "rank 1 waits for ever for the message from F0@0 on rank 0 to F0@1 on rank 1");
}

TEST_CASE("an action without the one that makes its input has no messages") {
  Schedule schedule = find_schedule("1f1b").make({2, 2, 2});
  schedule.ranks[0].erase(schedule.ranks[0].begin());
  CHECK_THROWS_AS(derive_messages(schedule), InternalError);
}

}  // namespace llmtrain::parallel
