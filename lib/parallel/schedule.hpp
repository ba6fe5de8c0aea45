#pragma once
/// Pipeline schedules as data: a list of actions per rank, made by pure functions. What a schedule
/// is good for, with pictures: docs/pipeline-schedules.md.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::parallel {

/// F: forward. B: whole backward. I and W: its input and weight parts apart.
enum class ActionKind : std::uint8_t { forward, backward, input_grad, weight_grad };
/// 'F', 'B', 'I', 'W'.
char letter(ActionKind kind);
/// "forward", "backward", "input gradient", "weight gradient".
std::string_view words(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::forward;
  int stage = 0;
  int micro_batch = 0;
  /// This F and the B behind it on the same rank belong to different stages and micro-batches and
  /// may run side by side, so that the communication of one hides behind the products of the other.
  bool overlaps_next = false;
  bool operator==(const Action&) const = default;
};
/// "F3@0", "B0@2", "I2@1" (micro-batch 2 on stage 1).
std::string to_string(const Action& action);

/// Seconds of one stage's actions, or any other unit: only their ratios matter. A B takes I + W.
struct ActionCosts {
  double forward = 1, input_grad = 1, weight_grad = 1;

  double of(ActionKind kind) const;
};

struct ScheduleShape {
  int num_ranks = 1;
  int num_stages = 1;  // a multiple of num_ranks
  int num_micro_batches = 1;
  /// Expected costs; only the list of a row that is made `by_costs` depends on them.
  ActionCosts costs = {};

  int stages_per_rank() const { return num_stages / num_ranks; }
};

/// Which rank holds a stage. Both walk the ranks `stages_per_rank` times.
enum class StagePlacement : std::uint8_t {
  loop,  // 0, 1, .. p-1, 0, 1, .. p-1: the last rank hands on to the first
  v,     // 0, 1, .. p-1, p-1, .. 1, 0: at the turns a stage hands on to its own rank
};
int rank_of_stage(StagePlacement placement, const ScheduleShape& shape, int stage);

/// What each rank does, in order. Sends and receives follow from it (lib/parallel/messages.hpp).
struct Schedule {
  ScheduleShape shape;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<Action>> ranks;
  /// Per rank: of how many (stage, micro-batch)s at most the activations live at once. They live
  /// from the beginning of F to the end of W or B.
  std::vector<int> max_live = {};
};

struct ScheduleRow {
  std::string_view name;
  std::string_view doc;
  StagePlacement placement = StagePlacement::loop;
  int stages_per_rank = 1;  // 0: any number
  /// Whether this number of micro-batches has a list; null when every number has.
  bool (*takes)(const ScheduleShape& shape);
  /// The lists of all ranks, for a shape that is not refused.
  std::vector<std::vector<Action>> (*actions)(const ScheduleShape& shape);
  /// The promise that Schedule::max_live repeats.
  int (*max_live)(const ScheduleShape& shape, int rank);
  /// Whether the lists are made for the shape's costs.
  bool by_costs = false;

  /// Why the schedule cannot serve this shape, with the nearest that it can; empty when it can.
  std::string refusal(const ScheduleShape& shape) const;
  int rank_of_stage(const ScheduleShape& shape, int stage) const;
  /// InternalError for a shape that is refused.
  Schedule make(const ScheduleShape& shape) const;
};
std::span<const ScheduleRow> schedules();
/// InternalError when there is none.
const ScheduleRow& find_schedule(std::string_view name);

/// The forwards alone, for a pass without gradients over any number of micro-batches: all ranks of
/// the row's stages work at the same time, and each stage takes the micro-batches in order.
Schedule forward_schedule(const ScheduleRow& row, const ScheduleShape& shape);

/// All that is wrong with the schedule, one line each; empty when nothing is. It must give every
/// (stage, micro-batch) F once, and B once or I and W once, all on the stage's rank, F before I or
/// B and I before W; I or B of a stage, and W or B, in ascending order of micro-batches; keep to
/// max_live where that is given; and end: no rank may wait for a message whose sender waits for
/// this rank. That is tried with sends that never wait, receives awaited at need, and one order of
/// the messages of each direction between two ranks (lib/parallel/messages.hpp).
std::vector<std::string> problems(const Schedule& schedule);
/// The same as one text.
std::string check(const Schedule& schedule);

}  // namespace llmtrain::parallel
