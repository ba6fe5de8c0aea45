// All forwards, then all backwards (Huang et al., arXiv 1811.06965).
#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    RankWriter writer(shape, StagePlacement::loop, rank);
    for (int m = 0; m < shape.num_micro_batches; ++m) writer.forward(0);
    for (int m = 0; m < shape.num_micro_batches; ++m) writer.backward(0);
    ranks.push_back(writer.take());
  }
  return ranks;
}

int max_live(const ScheduleShape& shape, int) { return shape.num_micro_batches; }

}  // namespace

ScheduleRow gpipe() {
  return {.name = "gpipe",
          .doc = "all forwards, then all backwards",
          .takes = nullptr,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
