// 1F1B with several stages per rank (Narayanan et al., SC'21, arXiv 2104.04473, section 2.2).
//
// Micro-batches go in rounds of equal size: a round passes the rank's first stage, then its second,
// and so on. Counted in forwards (or backwards) of one stage, item k of a rank is therefore a pure
// function of k, and the schedule is 1F1B over items.
#include <algorithm>

#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

// As many rounds as give each at least one micro-batch per rank, with which no stage of a round
// waits for the one before it; fewer micro-batches than ranks are one round.
int num_rounds(const ScheduleShape& shape) {
  return std::max(1, shape.num_micro_batches / shape.num_ranks);
}

int round_size(const ScheduleShape& shape) { return shape.num_micro_batches / num_rounds(shape); }

bool takes(const ScheduleShape& shape) { return shape.num_micro_batches % num_rounds(shape) == 0; }

int num_items(const ScheduleShape& shape) {
  return shape.stages_per_rank() * shape.num_micro_batches;
}

// Forwards before the first pair: all of the first round but its last stage, and for each rank
// behind this one the way there and back; with a single stage per rank both ways together take one.
int warm_up(const ScheduleShape& shape, int rank) {
  const int v = shape.stages_per_rank();
  const int per_rank_behind = v == 1 ? 1 : 2;
  const int items = (v - 1) * round_size(shape) + per_rank_behind * (shape.num_ranks - 1 - rank);
  return std::min(items, num_items(shape));
}

int chunk_of(const ScheduleShape& shape, int item) {
  return item / round_size(shape) % shape.stages_per_rank();
}

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    RankWriter writer(shape, StagePlacement::loop, rank);
    const int items = num_items(shape);
    const int ahead = warm_up(shape, rank);
    for (int k = 0; k < ahead; ++k) writer.forward(chunk_of(shape, k));
    for (int k = 0; k < items; ++k) {
      if (k + ahead < items) writer.forward(chunk_of(shape, k + ahead));
      writer.backward(shape.stages_per_rank() - 1 - chunk_of(shape, k));
    }
    ranks.push_back(writer.take());
  }
  return ranks;
}

int max_live(const ScheduleShape& shape, int rank) {
  return std::min(warm_up(shape, rank) + 1, num_items(shape));
}

}  // namespace

ScheduleRow interleaved_1f1b() {
  return {.name = "interleaved_1f1b",
          .doc =
              "1f1b over several stages per rank: a bubble as many times smaller, for as many "
              "times the messages and more activations",
          .stages_per_rank = 0,
          .takes = &takes,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
