#include "lib/parallel/schedule.hpp"

#include <algorithm>
#include <array>

#include "lib/base/require.hpp"
#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel {

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return 'F';
    case ActionKind::backward:
      return 'B';
    case ActionKind::input_grad:
      return 'I';
    case ActionKind::weight_grad:
      return 'W';
  }
  fail("no such kind of action");
}

std::string_view words(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::input_grad:
      return "input gradient";
    case ActionKind::weight_grad:
      return "weight gradient";
  }
  fail("no such kind of action");
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}@{}", letter(action.kind), action.micro_batch, action.stage);
}

double ActionCosts::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::forward:
      return forward;
    case ActionKind::backward:
      return input_grad + weight_grad;
    case ActionKind::input_grad:
      return input_grad;
    case ActionKind::weight_grad:
      return weight_grad;
  }
  fail("no such kind of action");
}

int rank_of_stage(StagePlacement placement, const ScheduleShape& shape, int stage) {
  const int walk = stage / shape.num_ranks;
  const int step = stage % shape.num_ranks;
  const bool back = placement == StagePlacement::v && walk % 2 == 1;
  return back ? shape.num_ranks - 1 - step : step;
}

namespace {

std::string counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("h") ? "es" : "s");
}

// The nearest numbers of micro-batches that the row takes, below and above: "10 or 12".
std::string nearest_micro_batches(const ScheduleRow& row, ScheduleShape shape) {
  const int asked = shape.num_micro_batches;
  const auto nearest = [&](int step) {
    shape.num_micro_batches = asked + step;
    while (shape.num_micro_batches > 0 && !row.takes(shape)) shape.num_micro_batches += step;
    return shape.num_micro_batches;
  };
  const int below = nearest(-1);
  const int above = nearest(+1);
  return below > 0 ? fmt::format("{} or {}", below, above) : fmt::format("{}", above);
}

}  // namespace

std::string ScheduleRow::refusal(const ScheduleShape& shape) const {
  require(shape.num_ranks > 0 && shape.num_stages > 0 && shape.num_micro_batches > 0,
          "a schedule of {} ranks, {} stages and {} micro-batches", shape.num_ranks,
          shape.num_stages, shape.num_micro_batches);
  const ActionCosts& costs = shape.costs;
  require(costs.forward > 0 && costs.input_grad > 0 && costs.weight_grad > 0,
          "F, I and W take {}, {} and {}: costs must be positive", costs.forward, costs.input_grad,
          costs.weight_grad);
  if (stages_per_rank > 0 && shape.num_stages != stages_per_rank * shape.num_ranks) {
    return fmt::format("{} has {} per rank: {} on {}, not {}", name,
                       counted(stages_per_rank, "stage"),
                       counted(stages_per_rank * shape.num_ranks, "stage"),
                       counted(shape.num_ranks, "rank"), shape.num_stages);
  }
  if (shape.num_stages % shape.num_ranks != 0) {
    const int below = shape.num_stages / shape.num_ranks * shape.num_ranks;
    return fmt::format("{} has equally many stages on each of {}: {}{}, not {}", name,
                       counted(shape.num_ranks, "rank"),
                       below > 0 ? fmt::format("{} or ", below) : "", below + shape.num_ranks,
                       shape.num_stages);
  }
  if (takes != nullptr && !takes(shape)) {
    return fmt::format("{} does not take {} on {}; take {}", name,
                       counted(shape.num_micro_batches, "micro-batch"),
                       counted(shape.num_ranks, "rank"), nearest_micro_batches(*this, shape));
  }
  return "";
}

int ScheduleRow::rank_of_stage(const ScheduleShape& shape, int stage) const {
  return parallel::rank_of_stage(placement, shape, stage);
}

Schedule ScheduleRow::make(const ScheduleShape& shape) const {
  const std::string refused = refusal(shape);
  require(refused.empty(), "{}", refused);
  Schedule schedule{.shape = shape, .rank_of_stage = {}, .ranks = actions(shape)};
  for (int s = 0; s < shape.num_stages; ++s) {
    schedule.rank_of_stage.push_back(rank_of_stage(shape, s));
  }
  for (int r = 0; r < shape.num_ranks; ++r) schedule.max_live.push_back(max_live(shape, r));
  return schedule;
}

std::span<const ScheduleRow> schedules() {
  static const std::array kRows{rows::one_forward_one_backward(),
                                rows::eager_1f1b(),
                                rows::gpipe(),
                                rows::interleaved_1f1b(),
                                rows::zb_h1(),
                                rows::zbv(),
                                rows::v_half(),
                                rows::dualpipev()};
  return kRows;
}

const ScheduleRow& find_schedule(std::string_view name) {
  const auto row = std::find_if(schedules().begin(), schedules().end(),
                                [&](const ScheduleRow& r) { return r.name == name; });
  require(row != schedules().end(), "no schedule {}", name);
  return *row;
}

}  // namespace llmtrain::parallel
