// Faults put into good schedules, and what is said about them.
#include <algorithm>

#include <doctest/doctest.h>

#include "lib/parallel/schedule.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

using List = std::vector<Action>;

Schedule good(std::string_view name, int ranks = 3, int micro_batches = 6) {
  const ScheduleRow& row = find_schedule(name);
  return row.make(test::shape_of(row, ranks, micro_batches, 2));
}

List::iterator find(List& list, ActionKind kind, int stage, int micro_batch) {
  return std::ranges::find_if(list, [&](const Action& a) {
    return a.kind == kind && a.stage == stage && a.micro_batch == micro_batch;
  });
}

bool says(const Schedule& schedule, std::string_view line) {
  const std::vector<std::string> found = problems(schedule);
  return std::ranges::find(found, line) != found.end();
}

}  // namespace

TEST_CASE("any two neighbours of a rank swapped: valid or found, never a walk without end") {
  int found = 0, tried = 0;
  for (const ScheduleRow& row : schedules()) {
    const Schedule schedule = good(row.name);
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      for (std::size_t i = 0; i + 1 < schedule.ranks[r].size(); ++i) {
        Schedule swapped = schedule;
        std::swap(swapped.ranks[r][i], swapped.ranks[r][i + 1]);
        found += check(swapped).empty() ? 0 : 1;
        ++tried;
      }
    }
  }
  CHECK(found > tried / 4);
  CHECK(found < tried);  // W may change places with many
}

TEST_CASE("two gradients of a stage in the wrong order are found") {
  Schedule schedule = good("zb_h1");
  List& list = schedule.ranks[1];
  std::swap(*find(list, ActionKind::input_grad, 1, 2), *find(list, ActionKind::input_grad, 1, 3));
  CHECK(says(schedule, "rank 1: I2@1 after micro-batch 3 on the same stage"));

  schedule = good("zb_h1");
  List& last = schedule.ranks[2];
  std::swap(*find(last, ActionKind::weight_grad, 2, 4), *find(last, ActionKind::weight_grad, 2, 5));
  CHECK(problems(schedule) ==
        std::vector<std::string>{"rank 2: W4@2 after micro-batch 5 on the same stage"});
}

// B is I and W at once: it may not overtake a W that waits.
TEST_CASE("a whole backward before the weight part of an earlier micro-batch is found") {
  const Schedule schedule{.shape = {1, 1, 2},
                          .rank_of_stage = {0},
                          .ranks = {{{ActionKind::forward, 0, 0},
                                     {ActionKind::forward, 0, 1},
                                     {ActionKind::input_grad, 0, 0},
                                     {ActionKind::backward, 0, 1},
                                     {ActionKind::weight_grad, 0, 0}}}};
  CHECK(problems(schedule) ==
        std::vector<std::string>{"rank 0: W0@0 after micro-batch 1 on the same stage"});
}

TEST_CASE("every action that is missing is found, with all that is wrong at once") {
  for (const ScheduleRow& row : schedules()) {
    const Schedule schedule = good(row.name);
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      for (std::size_t i = 0; i < schedule.ranks[r].size(); ++i) {
        Schedule missing = schedule;
        missing.ranks[r].erase(missing.ranks[r].begin() + static_cast<std::ptrdiff_t>(i));
        CHECK(check(missing).find("it needs one F, and one B or one I and one W") !=
              std::string::npos);
      }
    }
  }
  Schedule schedule = good("zb_h1");
  List& list = schedule.ranks[2];
  list.erase(find(list, ActionKind::weight_grad, 2, 5));
  list.erase(find(list, ActionKind::weight_grad, 2, 0));
  CHECK(problems(schedule).size() >= 2);
  CHECK(says(schedule,
             "micro-batch 5 on stage 2 has 1 F, 0 B, 1 I and 0 W: it needs one F, and one B or one "
             "I and one W"));
}

TEST_CASE("an action that appears twice is found") {
  Schedule schedule = good("1f1b");
  schedule.ranks[0].push_back({ActionKind::weight_grad, 0, 5});
  CHECK(says(schedule,
             "micro-batch 5 on stage 0 has 1 F, 1 B, 0 I and 1 W: it needs one F, and one B or one "
             "I and one W"));
}

TEST_CASE("I before its F, and W before its I, are found") {
  Schedule schedule = good("zbv");
  List& list = schedule.ranks[0];
  auto f = find(list, ActionKind::forward, 5, 0);
  std::iter_swap(f, f + 1);
  CHECK(says(schedule, "rank 0: I0@5 before its F"));

  schedule = good("zbv");
  auto i = find(schedule.ranks[0], ActionKind::input_grad, 5, 0);
  std::iter_swap(i, i + 1);
  CHECK(says(schedule, "rank 0: W0@5 before its I"));
}

TEST_CASE("ranks that wait for each other are all named") {
  Schedule schedule = good("1f1b", 2, 4);
  // Rank 0 wants the gradient of micro-batch 1 before it has sent its activation.
  List& list = schedule.ranks[0];
  std::iter_swap(find(list, ActionKind::forward, 0, 2), find(list, ActionKind::backward, 0, 1));
  std::iter_swap(find(list, ActionKind::forward, 0, 1), find(list, ActionKind::backward, 0, 0));
  std::iter_swap(find(list, ActionKind::forward, 0, 1), find(list, ActionKind::backward, 0, 1));
  CHECK(says(schedule, "rank 0 waits for ever before B1@0"));
  CHECK(says(schedule, "rank 1 waits for ever before F1@1"));
}

TEST_CASE("too many live activations are found where they become too many") {
  Schedule schedule = good("1f1b");
  List& list = schedule.ranks[1];
  // Rank 1 of 3 runs one forward ahead; here it runs two.
  const auto late = find(list, ActionKind::forward, 1, 2);
  std::rotate(list.begin() + 1, late, late + 1);
  CHECK(problems(schedule) ==
        std::vector<std::string>{"rank 1: with F1@1 the activations of 3 micro-batches and stages "
                                 "live, promised are at most 2"});
  schedule.max_live.clear();
  CHECK(check(schedule) == "");
}

TEST_CASE("an action beside which no B of another stage runs is found") {
  Schedule schedule = good("dualpipev");
  schedule.ranks[0].back().overlaps_next = true;
  CHECK(problems(schedule) ==
        std::vector<std::string>{"rank 0: beside W5@0 runs no B of another stage"});

  schedule = find_schedule("1f1b").make({1, 1, 2});
  schedule.ranks[0].front().overlaps_next = true;
  CHECK(problems(schedule) ==
        std::vector<std::string>{"rank 0: beside F0@0 runs no B of another stage"});
}

TEST_CASE("a pair whose B waits for its F by way of another rank is found") {
  using enum ActionKind;
  Schedule schedule{.shape = {2, 4, 2},
                    .rank_of_stage = {0, 1, 0, 1},
                    .ranks = {{{forward, 0, 0},
                               {forward, 2, 0},
                               {forward, 0, 1},
                               {backward, 2, 0},
                               {forward, 2, 1},
                               {backward, 2, 1},
                               {backward, 0, 0},
                               {backward, 0, 1}},
                              {{forward, 1, 0},
                               {forward, 3, 0},
                               {forward, 1, 1},  // reads F1@0
                               {backward, 3, 0},
                               {forward, 3, 1},
                               {backward, 3, 1},
                               {backward, 1, 0},
                               {backward, 1, 1}}}};
  CHECK(check(schedule) == "");

  schedule.ranks[0][2].overlaps_next = true;
  CHECK(
      problems(schedule) ==
      std::vector<std::string>{"rank 0 waits for ever before F1@0 when pairs are begun together",
                               "rank 1 waits for ever before F1@1 when pairs are begun together"});
}

TEST_CASE("actions of a foreign stage, of no stage, and shapes that do not fit are found") {
  Schedule schedule = good("1f1b");
  schedule.ranks[0].push_back({ActionKind::forward, 1, 0});
  CHECK(says(schedule, "rank 0 runs F0@1, a stage of rank 1"));
  schedule.ranks[0].back() = {ActionKind::forward, 7, 0};
  CHECK(says(schedule, "rank 0: there is no F0@7"));
  schedule.ranks[0].back() = {ActionKind::forward, 0, 6};
  CHECK(says(schedule, "rank 0: there is no F6@0"));
  schedule.ranks.pop_back();
  CHECK(problems(schedule).size() == 1);
}

}  // namespace llmtrain::parallel
