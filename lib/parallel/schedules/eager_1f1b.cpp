// One forward, one backward with twice the warm-up, so that a rank has work while messages are on
// their way (eager-1F1B; Zhuang et al., MLSys'23, arXiv 2211.05322).
#include <algorithm>

#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

int warm_up(const ScheduleShape& shape, int rank) {
  return std::min(2 * (shape.num_ranks - 1 - rank), shape.num_micro_batches);
}

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  return behind_warm_up(shape, &warm_up);
}

int max_live(const ScheduleShape& shape, int rank) {
  return std::min(2 * (shape.num_ranks - 1 - rank) + 1, shape.num_micro_batches);
}

}  // namespace

ScheduleRow eager_1f1b() {
  return {.name = "eager_1f1b",
          .doc =
              "1f1b that is twice as far ahead: hides messages, and idles less where the first "
              "stages take longest, with up to twice the activations",
          .takes = nullptr,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
