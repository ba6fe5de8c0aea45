// ZB-H1: 1F1B whose weight parts wait for the bubble (Qi et al., "Zero Bubble Pipeline
// Parallelism", arXiv 2401.10241, section 2.2).
//
// Rank r puts W off by r micro-batches: it runs r forwards fewer ahead than rank 0, so that every
// rank keeps as many micro-batches as rank 0 of 1F1B does.
#include <algorithm>

#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  const int micro_batches = shape.num_micro_batches;
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    RankWriter writer(shape, StagePlacement::loop, rank);
    const int ahead = std::min(shape.num_ranks - 1 - rank, micro_batches);
    for (int m = 0; m < ahead; ++m) writer.forward(0);
    for (int m = 0; m < micro_batches; ++m) {
      if (m + ahead < micro_batches) writer.forward(0);
      writer.input_grad(0);
      if (m >= rank) writer.weight_grad(0);
    }
    for (int m = 0; m < std::min(rank, micro_batches); ++m) writer.weight_grad(0);
    ranks.push_back(writer.take());
  }
  return ranks;
}

int max_live(const ScheduleShape& shape, int) {
  return std::min(shape.num_ranks, shape.num_micro_batches);
}

}  // namespace

ScheduleRow zb_h1() {
  return {.name = "zb_h1",
          .doc =
              "1f1b whose weight gradients fill the bubble: a third of it is left, at 1f1b's "
              "peak of activations",
          .takes = nullptr,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
