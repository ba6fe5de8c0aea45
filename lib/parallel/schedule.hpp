#pragma once
/// Pipeline schedules as data: a list of actions per rank, made by pure functions.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::parallel {

/// F: forward. B: whole backward. I and W: its input and weight parts apart.
enum class ActionKind : std::uint8_t { forward, backward, input_grad, weight_grad };

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};
/// "F3", "B0", "I2@1" (stage 1).
std::string to_string(const Action& action);

struct ScheduleShape {
  int num_ranks = 1;
  int num_stages = 1;  // a multiple of num_ranks
  int num_micro_batches = 1;
};

/// What each rank does, in order. Sends and receives follow from it.
struct Schedule {
  ScheduleShape shape;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> ranks;
};

struct ScheduleRow {
  std::string_view name;
  std::string_view doc;
  Schedule (*make)(const ScheduleShape& shape);
};
std::span<const ScheduleRow> schedules();
/// InternalError when there is none.
const ScheduleRow& find_schedule(std::string_view name);

/// Why the schedule is wrong, or empty: every (stage, micro-batch) has F once and B once, or I and
/// W once; in their order on one rank; I and W of a stage in ascending micro-batch order; no wait
/// that can never end.
std::string check(const Schedule& schedule);

}  // namespace llmtrain::parallel
