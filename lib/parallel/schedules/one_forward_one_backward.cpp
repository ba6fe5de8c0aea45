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
  return behind_warm_up(shape, &warm_up);
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
