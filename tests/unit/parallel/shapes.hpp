#pragma once
/// Shapes of schedules that tests go through.

#include <algorithm>
#include <vector>

#include "lib/parallel/schedule.hpp"

namespace llmtrain::parallel::test {

/// The row's own stages per rank, or `stages_per_rank` where any number will do.
inline ScheduleShape shape_of(const ScheduleRow& row, int ranks, int micro_batches,
                              int stages_per_rank = 1, ActionCosts costs = {}) {
  const int per_rank = row.stages_per_rank > 0 ? row.stages_per_rank : stages_per_rank;
  return {.num_ranks = ranks,
          .num_stages = ranks * per_rank,
          .num_micro_batches = micro_batches,
          .costs = costs};
}

inline constexpr int kMostRanks = 8, kMostMicroBatches = 32, kMostStagesPerRank = 4;

/// Calls visit(shape) for up to 8 ranks, 32 micro-batches and 4 stages per rank, without the shapes
/// that the row refuses. Returns how many there were.
template <class Visit>
int for_each_shape(const ScheduleRow& row, Visit&& visit) {
  int count = 0;
  const int most_stages = row.stages_per_rank > 0 ? 1 : kMostStagesPerRank;
  for (int v = 1; v <= most_stages; ++v) {
    for (int p = 1; p <= kMostRanks; ++p) {
      for (int m = 1; m <= kMostMicroBatches; ++m) {
        const ScheduleShape shape = shape_of(row, p, m, v);
        if (!row.refusal(shape).empty()) continue;
        visit(shape);
        ++count;
      }
    }
  }
  return count;
}

/// The most (stage, micro-batch)s whose activations live at once on each rank.
inline std::vector<int> most_live(const Schedule& schedule) {
  std::vector<int> most;
  for (const auto& actions : schedule.ranks) {
    int live = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::forward) peak = std::max(peak, ++live);
      if (action.kind == ActionKind::backward || action.kind == ActionKind::weight_grad) --live;
    }
    most.push_back(peak);
  }
  return most;
}

}  // namespace llmtrain::parallel::test
