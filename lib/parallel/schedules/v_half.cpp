// V-Half: two stages per rank in a V with half the activations of 1F1B (Qi et al., "Pipeline
// Parallelism with Controllable Memory", arXiv 2405.15362).
//
// The paper repeats a block whose offsets fit F = I = W and squeezes it; for other costs that order
// leaves large gaps. Here the same bound of memory is kept by a list scheduler with the costs at
// hand: an idle rank begins the first action, by a fixed preference, whose inputs are there and
// whose activations fit. What is preferred is tried out, and the shortest result is the schedule.
//
// No rank is ever stuck: F0 leaves at least one place to F1, and both take micro-batches in
// ascending order, so the oldest micro-batch under way always finds room.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <queue>

#include "lib/base/require.hpp"
#include "lib/parallel/schedule_walk.hpp"
#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

// (Stage, micro-batch)s that live on a rank at most: two for each of the floor(p / 2) + 1
// micro-batches of the paper.
int live_bound(int num_ranks) { return 2 * (num_ranks / 2 + 1); }

// Kinds of actions of a rank: chunk 0 is the stage on the way down, chunk 1 that on the way back.
enum Kind : int { kF0, kF1, kI0, kI1, kW, kNumKinds };

using Preference = std::array<Kind, kNumKinds>;  // first what is preferred

// How a rank chooses among what it could begin.
struct Policy {
  /// Without one: what comes first when the paper's block is repeated.
  std::optional<Preference> preference;
  /// Places that the last rank keeps for chunk 1; rank 0 keeps one, those between in proportion.
  int places_of_last = 1;
  /// Whether chunk 1 may take places that chunk 0 leaves free.
  bool borrows = true;
};

// Of all other orders of the kinds, tried for 4 to 8 ranks and four ratios of the costs, the best
// saves a fifth of a forward of a step.
std::vector<Policy> policies(int num_ranks) {
  const std::array<std::optional<Preference>, 5> preferences{
      std::nullopt, Preference{kF1, kF0, kI0, kI1, kW}, Preference{kF1, kI0, kI1, kF0, kW},
      Preference{kF1, kI1, kI0, kF0, kW}, Preference{kI1, kF1, kI0, kF0, kW}};
  const int half = live_bound(num_ranks) / 2;
  std::vector<Policy> all;
  for (const auto& preference : preferences) {
    for (const int places : {std::max(1, half - 1), half}) {
      for (const bool borrows : {true, false}) all.push_back({preference, places, borrows});
    }
  }
  return all;
}

// Times in whole ticks, so that what is simultaneous is so whatever the rounding.
struct Ticks {
  std::int64_t forward, input_grad, weight_grad;

  explicit Ticks(const ActionCosts& costs) {
    constexpr double kLongest = 1e6;
    const double scale = kLongest / std::max({costs.forward, costs.input_grad, costs.weight_grad});
    const auto ticks = [&](double cost) {
      return std::max<std::int64_t>(1, std::llround(cost * scale));
    };
    forward = ticks(costs.forward);
    input_grad = ticks(costs.input_grad);
    weight_grad = ticks(costs.weight_grad);
  }
};

class ListScheduler {
 public:
  ListScheduler(const ScheduleShape& shape, const Policy& policy);
  /// Ticks until the last rank is done.
  std::int64_t run();
  std::vector<std::vector<Action>> take();

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  struct Rank {
    explicit Rank(RankWriter writer) : writer(std::move(writer)) {}
    RankWriter writer;
    int rank = 0;
    std::array<int, 2> live{};
    int places_of_back = 0;  // kept for chunk 1
    std::int64_t free_at = 0;
  };
  bool fits(const Rank& rank, int chunk) const;
  bool can_forward(const Rank& rank, int chunk) const;
  bool can_input_grad(const Rank& rank, int chunk) const;
  bool can(const Rank& rank, Kind kind) const;
  Preference preference(const Rank& rank) const;
  void begin(Rank& rank, Kind kind);
  std::size_t cell(int stage, int micro_batch) const;

  ScheduleShape shape_;
  Policy policy_;
  Ticks ticks_;
  std::vector<Rank> ranks_;
  std::vector<std::int64_t> forward_ends_, gradient_ends_;  // [stage, micro-batch]
  std::int64_t now_ = 0;
};

ListScheduler::ListScheduler(const ScheduleShape& shape, const Policy& policy)
    : shape_(shape), policy_(policy), ticks_(shape.costs) {
  const auto cells = static_cast<std::size_t>(shape.num_stages) *
                     static_cast<std::size_t>(shape.num_micro_batches);
  forward_ends_.assign(cells, kNever);
  gradient_ends_.assign(cells, kNever);
  const int last = std::max(1, shape.num_ranks - 1);
  for (int r = 0; r < shape.num_ranks; ++r) {
    Rank& rank = ranks_.emplace_back(RankWriter(shape, StagePlacement::v, r));
    rank.rank = r;
    // Rounded to the nearest.
    rank.places_of_back = 1 + (2 * (policy.places_of_last - 1) * r + last) / (2 * last);
  }
}

std::size_t ListScheduler::cell(int stage, int micro_batch) const {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.num_micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

bool ListScheduler::fits(const Rank& rank, int chunk) const {
  const int bound = live_bound(shape_.num_ranks);
  if (rank.live[0] + rank.live[1] >= bound) return false;
  if (chunk == 0) return rank.live[0] < bound - rank.places_of_back;
  return policy_.borrows || rank.live[1] < rank.places_of_back;
}

bool ListScheduler::can_forward(const Rank& rank, int chunk) const {
  const int m = rank.writer.forwards(chunk);
  const int stage = rank.writer.stage(chunk);
  return m < shape_.num_micro_batches &&
         (stage == 0 || forward_ends_[cell(stage - 1, m)] <= now_) && fits(rank, chunk);
}

bool ListScheduler::can_input_grad(const Rank& rank, int chunk) const {
  const int m = rank.writer.input_grads(chunk);
  const int stage = rank.writer.stage(chunk);
  return m < shape_.num_micro_batches && forward_ends_[cell(stage, m)] <= now_ &&
         (stage == shape_.num_stages - 1 || gradient_ends_[cell(stage + 1, m)] <= now_);
}

bool ListScheduler::can(const Rank& rank, Kind kind) const {
  switch (kind) {
    case kF0:
    case kF1:
      return can_forward(rank, kind - kF0);
    case kI0:
    case kI1:
      return can_input_grad(rank, kind - kI0);
    default:
      return rank.writer.oldest_waiting() >= 0;
  }
}

// The block of "V-Half" in ticks of F = I = W, section 4 of the paper; it comes again every 6
// ticks.
Preference ListScheduler::preference(const Rank& rank) const {
  if (policy_.preference) return *policy_.preference;
  const int p = shape_.num_ranks, r = rank.rank;
  const int turn = p % 2 == 0 ? 3 : 0;  // at the last rank, so that no two actions meet in a tick
  std::array<int, kNumKinds> tick{};
  tick[kF0] = 2 * r + 6 * rank.writer.forwards(0);
  tick[kF1] = 3 * p - 2 - r + 6 * rank.writer.forwards(1);
  tick[kI1] = 3 * p - 1 + turn + 2 * r + 6 * rank.writer.input_grads(1);
  tick[kI0] = 6 * p - 2 + turn - r + 6 * rank.writer.input_grads(0);
  tick[kW] = std::numeric_limits<int>::max();
  Preference kinds{kF0, kF1, kI0, kI1, kW};
  std::ranges::stable_sort(kinds, {}, [&](Kind kind) { return tick[kind]; });
  return kinds;
}

void ListScheduler::begin(Rank& rank, Kind kind) {
  if (kind == kW) {
    --rank.live[static_cast<std::size_t>(rank.writer.oldest_waiting())];
    rank.writer.oldest_weight_grad();
    rank.free_at = now_ + ticks_.weight_grad;
    return;
  }
  const bool forward = kind == kF0 || kind == kF1;
  const int chunk = kind - (forward ? kF0 : kI0);
  const int stage = rank.writer.stage(chunk);
  if (forward) {
    rank.free_at = now_ + ticks_.forward;
    forward_ends_[cell(stage, rank.writer.forwards(chunk))] = rank.free_at;
    ++rank.live[static_cast<std::size_t>(chunk)];
    rank.writer.forward(chunk);
  } else {
    rank.free_at = now_ + ticks_.input_grad;
    gradient_ends_[cell(stage, rank.writer.input_grads(chunk))] = rank.free_at;
    rank.writer.input_grad(chunk);
  }
}

std::int64_t ListScheduler::run() {
  std::int64_t left = std::int64_t{3} * shape_.num_stages * shape_.num_micro_batches;
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> ends;
  ends.push(0);
  std::int64_t makespan = 0;
  while (left > 0) {
    require(!ends.empty(), "v_half is stuck with {} actions left", left);
    now_ = ends.top();
    while (!ends.empty() && ends.top() == now_) ends.pop();
    for (Rank& rank : ranks_) {
      if (rank.free_at > now_) continue;
      const Preference kinds = preference(rank);
      const auto kind = std::ranges::find_if(kinds, [&](Kind k) { return can(rank, k); });
      if (kind == kinds.end()) continue;
      begin(rank, *kind);
      ends.push(rank.free_at);
      makespan = std::max(makespan, rank.free_at);
      --left;
    }
  }
  return makespan;
}

std::vector<std::vector<Action>> ListScheduler::take() {
  std::vector<std::vector<Action>> lists;
  for (Rank& rank : ranks_) lists.push_back(rank.writer.take());
  return lists;
}

std::vector<std::vector<Action>> shortest_lists(const ScheduleShape& shape) {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<Action>> lists;
  for (const Policy& policy : policies(shape.num_ranks)) {
    ListScheduler scheduler(shape, policy);
    const std::int64_t ticks = scheduler.run();
    if (ticks >= shortest) continue;
    shortest = ticks;
    lists = scheduler.take();
  }
  return lists;
}

double seconds(const ScheduleShape& shape, const std::vector<std::vector<Action>>& lists) {
  const Schedule schedule{.shape = shape, .rank_of_stage = {}, .ranks = lists};
  return times_without_messages(schedule, DataFlow(schedule)).last();
}

// The list for equal costs may be the better one for costs that are nearly equal.
std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> fitted = shortest_lists(shape);
  ScheduleShape equal_costs = shape;
  equal_costs.costs = {};
  std::vector<std::vector<Action>> equal = shortest_lists(equal_costs);
  return seconds(shape, equal) < seconds(shape, fitted) ? equal : fitted;
}

int max_live(const ScheduleShape& shape, int) {
  return std::min(live_bound(shape.num_ranks), 2 * shape.num_micro_batches);
}

}  // namespace

ScheduleRow v_half() {
  return {.name = "v_half",
          .doc =
              "two stages per rank in a V with half the activations of 1f1b, ordered for the "
              "costs of F, I and W",
          .placement = StagePlacement::v,
          .stages_per_rank = 2,
          .takes = nullptr,
          .actions = &actions,
          .max_live = &max_live,
          .by_costs = true};
}

}  // namespace llmtrain::parallel::rows
