#include "lib/parallel/simulator.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <random>
#include <set>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

using test::shape_of;

// Work of every stage drawn anew; eighths, so that sums are exact in any order.
SimulationInput random_work(const Schedule& schedule, std::mt19937& random) {
  SimulationInput input = uniform_work(schedule);
  std::uniform_int_distribution<int> eighths(1, 40);
  const auto draw = [&] { return eighths(random) / 8.0; };
  for (StageWork& work : input.stages) {
    work.seconds = {draw(), draw(), draw()};
    work.output_bytes = 8;
  }
  return input;
}

Link random_link(int from, int to) {
  return {.latency_seconds = (from + 2 * to) % 3 / 8.0,
          .bytes_per_second = 16.0 * (1 + (from + to) % 2)};
}

template <class Visit>
void for_random_inputs(Visit&& visit) {
  std::mt19937 random(7);
  for (const ScheduleRow& row : schedules()) {
    for (const int p : {1, 2, 3, 5}) {
      for (const int m : {2 * p, 2 * p + 4, 20}) {
        const ScheduleShape shape = shape_of(row, p, m, 2);
        if (!row.refusal(shape).empty()) continue;
        const Schedule schedule = row.make(shape);
        CAPTURE(row.name);
        CAPTURE(p);
        CAPTURE(m);
        visit(schedule, random_work(schedule, random));
      }
    }
  }
}

// The end of an action from its definition: behind the action before it and all that it reads.
class LongestPath {
 public:
  LongestPath(const Schedule& schedule, const SimulationInput& input)
      : schedule_(schedule), input_(input) {}

  double end(const Action& action) {
    const auto key = std::tuple(action.kind, action.stage, action.micro_batch);
    if (const auto known = ends_.find(key); known != ends_.end()) return known->second;
    double begin = 0;
    const auto rank =
        static_cast<std::size_t>(schedule_.rank_of_stage[static_cast<std::size_t>(action.stage)]);
    const auto& list = schedule_.ranks[rank];
    const auto here = std::ranges::find(list, action);
    if (here != list.begin()) begin = end(*(here - 1));
    for (const auto& actions : schedule_.ranks) {
      for (const Action& other : actions) {
        if (reads(action, other)) begin = std::max(begin, end(other));
      }
    }
    const double cost =
        input_.stages[static_cast<std::size_t>(action.stage)].seconds.of(action.kind);
    return ends_[key] = begin + cost;
  }

 private:
  static bool makes_gradient(const Action& a) {
    return a.kind == ActionKind::input_grad || a.kind == ActionKind::backward;
  }
  static bool reads(const Action& action, const Action& other) {
    if (action.micro_batch != other.micro_batch) return false;
    const bool forward = other.kind == ActionKind::forward;
    if (action.kind == ActionKind::forward) return forward && other.stage == action.stage - 1;
    if (makes_gradient(action)) {
      return (forward && other.stage == action.stage) ||
             (makes_gradient(other) && other.stage == action.stage + 1);
    }
    return makes_gradient(other) && other.stage == action.stage;
  }

  const Schedule& schedule_;
  const SimulationInput& input_;
  std::map<std::tuple<ActionKind, int, int>, double> ends_;
};

SimulationInput two_stages_with_links(const Schedule& schedule) {
  SimulationInput input = uniform_work(schedule);
  for (StageWork& work : input.stages) work.output_bytes = 10;
  input.link = [](int, int) { return Link{.latency_seconds = 0.25, .bytes_per_second = 20}; };
  return input;
}

std::vector<double> begins(const RankTimeline& rank) {
  std::vector<double> all;
  for (const Span& span : rank.actions) all.push_back(span.begin);
  return all;
}

}  // namespace

// F takes 1, B 2, a message half a second of its channel and a quarter behind that.
TEST_CASE("two micro-batches of 1f1b on two ranks with messages, by hand") {
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 2});
  SimulationInput input = two_stages_with_links(schedule);

  const Simulation beside = simulate(schedule, input);
  CHECK(begins(beside.ranks[0]) == std::vector<double>{0, 1, 5.5, 8.5});          // F0 F1 B0 B1
  CHECK(begins(beside.ranks[1]) == std::vector<double>{1.75, 2.75, 4.75, 5.75});  // F0 B0 F1 B1
  CHECK(beside.seconds == 10.5);
  // Rank 1 posts the second activation only as B0 begins.
  CHECK(beside.messages[1].begin == 2.75);
  CHECK(beside.messages[1].end == 3.5);
  CHECK(beside.ranks[0].busy_seconds == 6);
  CHECK(beside.ranks[0].bubble_fraction == 1 - 6 / 10.5);
  CHECK(beside.ranks[0].exposed_message_seconds == 1.5);
  CHECK(beside.ranks[1].exposed_message_seconds == 0.75);
  CHECK(beside.critical_message_seconds == 1.5);
  CHECK(beside.critical_action_seconds == std::array<double, 4>{3, 6, 0, 0});

  input.overlap_messages = false;
  const Simulation between = simulate(schedule, input);
  CHECK(begins(between.ranks[0]) == std::vector<double>{0, 1.75, 5.5, 9.25});
  CHECK(begins(between.ranks[1]) == std::vector<double>{1.75, 2.75, 5.5, 6.5});
  CHECK(between.seconds == 11.25);
  CHECK(between.ranks[0].exposed_message_seconds == 3);
  CHECK(between.ranks[1].exposed_message_seconds == 2.25);
}

TEST_CASE("messages of a channel leave one after the other and arrive a latency later") {
  const Schedule schedule = find_schedule("gpipe").make({2, 2, 4});
  SimulationInput input = uniform_work(schedule);
  input.stages[0].output_bytes = 30;
  input.link = [](int, int) { return Link{.latency_seconds = 2, .bytes_per_second = 10}; };

  const Simulation simulation = simulate(schedule, input);

  for (std::size_t m = 0; m < 4; ++m) {
    const double begin = 1 + 3 * static_cast<double>(m);
    CHECK(simulation.messages[m].begin == begin);
    CHECK(simulation.messages[m].end == begin + 5);
  }
  // The critical path runs through the channel: one F, three times the bytes, and the last arrival.
  CHECK(simulation.critical_path[0].action == Position{0, 0});
  CHECK(simulation.critical_path[1].message == 0);
  CHECK(simulation.critical_path[1].span.seconds() == 3);
  CHECK(simulation.critical_path[4].span.seconds() == 5);
}

TEST_CASE("a gradient has the bytes of the activation that it belongs to") {
  const Schedule schedule = find_schedule("1f1b").make({3, 3, 1});
  SimulationInput input = uniform_work(schedule);
  input.stages[0].output_bytes = 10;
  input.stages[1].output_bytes = 40;
  input.stages[2].output_bytes = 1000;  // leaves no rank
  input.link = [](int, int) { return Link{.bytes_per_second = 10}; };
  CHECK(simulate(schedule, input).seconds == 3 * 3 + 2 * (1 + 4));
}

TEST_CASE("each direction of each pair of ranks has its own link") {
  const Schedule schedule = find_schedule("1f1b").make({4, 4, 1});
  SimulationInput input = uniform_work(schedule);
  std::set<std::pair<int, int>> asked;
  input.link = [&](int from, int to) {
    asked.emplace(from, to);
    const bool crosses_nodes = from / 2 != to / 2;
    return Link{.latency_seconds = crosses_nodes ? 5.0 : 0.5};
  };
  CHECK(simulate(schedule, input).seconds == 4 * 3 + 2 * (0.5 + 5 + 0.5));
  CHECK(asked == std::set<std::pair<int, int>>{{0, 1}, {1, 2}, {2, 3}, {3, 2}, {2, 1}, {1, 0}});
}

// F = 1, I = 1.6, W = 0.4 of a whole rank's work on 8 ranks with 32 micro-batches; a message takes
// 0.1. The percentages are an independent simulator's, over the 96 seconds of a rank's work.
TEST_CASE("bubbles with latency are those of an independent simulation") {
  struct Row {
    std::string_view name;
    int stages_per_rank;
    double percent, percent_with_latency;
  };
  for (const Row& row : {Row{"1f1b", 1, 21.88, 28.96}, Row{"interleaved_1f1b", 2, 10.94, 14.06},
                         Row{"interleaved_1f1b", 4, 5.47, 11.93}, Row{"zb_h1", 1, 16.04, 18.96},
                         Row{"zbv", 2, 8.75, 12.92}, Row{"dualpipev", 2, 13.33, 21.87}}) {
    CAPTURE(row.name);
    const double part = 1.0 / row.stages_per_rank;
    const ScheduleRow& schedule_row = find_schedule(row.name);
    const Schedule schedule = schedule_row.make(
        shape_of(schedule_row, 8, 32, row.stages_per_rank, {part, 1.6 * part, 0.4 * part}));
    SimulationInput input = uniform_work(schedule);
    if (row.name == "dualpipev") input.pair_fraction = 1;
    const auto percent = [&] { return 100 * (simulate(schedule, input).seconds - 96) / 96; };
    CHECK(std::abs(percent() - row.percent) < 0.0051);
    input.link = [](int, int) { return Link{.latency_seconds = 0.1}; };
    CHECK(std::abs(percent() - row.percent_with_latency) < 0.0051);
  }
}

// Of an order that is made for its costs the reference's is a bound.
TEST_CASE("v_half with latency idles no longer than in an independent simulation") {
  const ScheduleRow& row = find_schedule("v_half");
  const Schedule schedule = row.make(shape_of(row, 8, 32, 2, {0.5, 0.8, 0.2}));
  SimulationInput input = uniform_work(schedule);
  input.link = [](int, int) { return Link{.latency_seconds = 0.1}; };
  CHECK(100 * (simulate(schedule, input).seconds - 96) / 96 < 38.965);
}

TEST_CASE("every action ends when the definition says, for any costs of the stages") {
  for_random_inputs([](const Schedule& schedule, const SimulationInput& input) {
    const Simulation simulation = simulate(schedule, input);
    LongestPath path(schedule, input);
    double last = 0;
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      for (std::size_t i = 0; i < schedule.ranks[r].size(); ++i) {
        const double end = path.end(schedule.ranks[r][i]);
        CHECK(simulation.ranks[r].actions[i].end == end);
        last = std::max(last, end);
      }
    }
    CHECK(simulation.seconds == last);
    for (const RankTimeline& rank : simulation.ranks) CHECK(rank.exposed_message_seconds == 0);
  });
}

TEST_CASE("the critical path is as long as the step, without a gap") {
  for_random_inputs([](const Schedule& schedule, SimulationInput input) {
    for (const int variant : {0, 1, 2, 3}) {
      CAPTURE(variant);
      if (variant > 0) input.link = &random_link;
      input.overlap_messages = variant != 2;
      if (variant == 3) input.pair_fraction = 0.75;
      const Simulation simulation = simulate(schedule, input);
      double at = 0, actions = 0, sum = simulation.critical_message_seconds;
      for (const CriticalPiece& piece : simulation.critical_path) {
        CHECK(piece.span.begin == at);
        at = piece.span.end;
        CHECK(piece.action.exists() == (piece.message < 0));
        if (!piece.action.exists()) continue;
        const Span& span = simulation.ranks[static_cast<std::size_t>(piece.action.rank)]
                               .actions[static_cast<std::size_t>(piece.action.index)];
        CHECK(span.begin == piece.span.begin);
        CHECK(span.end == piece.span.end);
        actions += span.seconds();
      }
      CHECK(at == simulation.seconds);
      for (const double seconds : simulation.critical_action_seconds) sum += seconds;
      CHECK(sum == doctest::Approx(simulation.seconds).epsilon(1e-12));
      CHECK(actions + simulation.critical_message_seconds == simulation.seconds);
      if (variant == 0) CHECK(simulation.critical_message_seconds == 0);
    }
  });
}

TEST_CASE("nothing gets shorter when something takes longer, and all scales") {
  for_random_inputs([](const Schedule& schedule, SimulationInput input) {
    input.link = &random_link;
    const Simulation before = simulate(schedule, input);
    for (std::size_t s = 0; s < input.stages.size(); ++s) {
      for (double ActionCosts::*cost :
           {&ActionCosts::forward, &ActionCosts::input_grad, &ActionCosts::weight_grad}) {
        SimulationInput longer = input;
        longer.stages[s].seconds.*cost += 0.375;
        CHECK(simulate(schedule, longer).seconds >= before.seconds);
      }
    }
    SimulationInput slower = input;
    slower.link = [](int from, int to) {
      Link link = random_link(from, to);
      link.latency_seconds += 0.125;
      return link;
    };
    CHECK(simulate(schedule, slower).seconds >= before.seconds);

    SimulationInput twice = input;
    for (StageWork& work : twice.stages) {
      const ActionCosts& one = work.seconds;
      work.seconds = {2 * one.forward, 2 * one.input_grad, 2 * one.weight_grad};
    }
    twice.link = [](int from, int to) {
      const Link one = random_link(from, to);
      return Link{2 * one.latency_seconds, one.bytes_per_second / 2};
    };
    CHECK(simulate(schedule, twice).seconds == 2 * before.seconds);
  });
}

TEST_CASE("messages that wait for a rank are not faster than those beside its actions") {
  for_random_inputs([](const Schedule& schedule, SimulationInput input) {
    input.link = &random_link;
    const Simulation beside = simulate(schedule, input);
    double exposed = 0;
    for (const RankTimeline& rank : beside.ranks) {
      CHECK(rank.busy_seconds + rank.exposed_message_seconds <= beside.seconds);
      exposed += rank.exposed_message_seconds;
    }
    CHECK((exposed > 0) == (schedule.ranks.size() > 1));
  });
}

TEST_CASE("bytes are held from F to I, less from I to W, until W or B") {
  const auto peak = [](std::vector<Action> list, std::uint64_t after_i) {
    const Schedule schedule{.shape = {1, 1, 2}, .rank_of_stage = {0}, .ranks = {std::move(list)}};
    SimulationInput input = uniform_work(schedule);
    input.stages[0].bytes_after_forward = 10;
    input.stages[0].bytes_after_input_grad = after_i;
    return simulate(schedule, input).ranks[0].peak_bytes;
  };
  using enum ActionKind;
  const std::vector<Action> late_w{{forward, 0, 0},    {forward, 0, 1},     {input_grad, 0, 0},
                                   {input_grad, 0, 1}, {weight_grad, 0, 0}, {weight_grad, 0, 1}};
  CHECK(peak(late_w, 4) == 20);
  CHECK(peak(late_w, 14) == 28);
  const std::vector<Action> between{{forward, 0, 0},    {input_grad, 0, 0},  {forward, 0, 1},
                                    {input_grad, 0, 1}, {weight_grad, 0, 0}, {weight_grad, 0, 1}};
  CHECK(peak(between, 4) == 14);
  CHECK(peak({{forward, 0, 0}, {backward, 0, 0}, {forward, 0, 1}, {backward, 0, 1}}, 4) == 10);
}

TEST_CASE("peaks of bytes add up over the stages of a rank") {
  const Schedule schedule = find_schedule("zbv").make({4, 8, 16});
  SimulationInput input = uniform_work(schedule);
  for (StageWork& work : input.stages) work.bytes_after_forward = work.bytes_after_input_grad = 7;
  for (const RankTimeline& rank : simulate(schedule, input).ranks) CHECK(rank.peak_bytes == 7 * 8);

  // Rank 0 of 1F1B holds four micro-batches, rank 3 one of larger stages.
  const Schedule uneven = find_schedule("1f1b").make({4, 4, 8});
  SimulationInput bytes = uniform_work(uneven);
  for (std::size_t s = 0; s < 4; ++s) bytes.stages[s].bytes_after_forward = 1 + s;
  const Simulation simulation = simulate(uneven, bytes);
  for (std::size_t r = 0; r < 4; ++r) CHECK(simulation.ranks[r].peak_bytes == (4 - r) * (1 + r));
}

TEST_CASE("what is held between I and W lets zb_h1 need less than 1f1b's peak on later ranks") {
  const Schedule schedule = find_schedule("zb_h1").make({4, 4, 8});
  SimulationInput input = uniform_work(schedule);
  for (StageWork& work : input.stages) {
    work.bytes_after_forward = 10;
    work.bytes_after_input_grad = 3;
  }
  const Simulation simulation = simulate(schedule, input);
  for (std::size_t r = 0; r < 4; ++r) CHECK(simulation.ranks[r].peak_bytes == 10 * (4 - r) + 3 * r);
}

TEST_CASE("16 ranks with 512 micro-batches are simulated well below a second") {
  for (const std::string_view name : {"zb_h1", "zbv"}) {
    const Schedule schedule = find_schedule(name).make(shape_of(find_schedule(name), 16, 512));
    SimulationInput input = uniform_work(schedule);
    input.link = &random_link;
    const std::clock_t start = std::clock();
    const Simulation simulation = simulate(schedule, input);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    CHECK(simulation.seconds > 3 * 512);
    CHECK(seconds < 0.5);
  }
}

TEST_CASE("a stuck schedule and work of other stages are refused") {
  Schedule schedule = find_schedule("1f1b").make({2, 2, 2});
  SimulationInput input = uniform_work(schedule);
  input.stages.pop_back();
  CHECK_THROWS_AS(simulate(schedule, input), InternalError);
  std::ranges::reverse(schedule.ranks[1]);
  CHECK_THROWS_AS(simulate(schedule, uniform_work(schedule)), InternalError);
}

}  // namespace llmtrain::parallel
