// A warm-up of forwards, then one forward, one backward (PipeDream-Flush; Narayanan et al., SC'21,
// arXiv 2104.04473).
#include <algorithm>

#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

// Forwards before the first pair: as many as there are ranks behind this one.
int warm_up(const ScheduleShape& shape, int rank) {
  return std::min(shape.num_ranks - 1 - rank, shape.num_micro_batches);
}

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    RankWriter writer(shape, StagePlacement::loop, rank);
    for (int m = 0; m < warm_up(shape, rank); ++m) writer.forward(0);
    for (int m = 0; m < shape.num_micro_batches; ++m) {
      if (writer.forwards(0) < shape.num_micro_batches) writer.forward(0);
      writer.backward(0);
    }
    ranks.push_back(writer.take());
  }
  return ranks;
}

int max_live(const ScheduleShape& shape, int rank) {
  return std::min(shape.num_ranks - rank, shape.num_micro_batches);
}

}  // namespace

ScheduleRow one_forward_one_backward() {
  return {.name = "1f1b",
          .doc =
              "one forward, one backward: the bubble of gpipe with the activations of no more "
              "micro-batches than ranks",
          .takes = nullptr,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
