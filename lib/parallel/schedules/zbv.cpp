// ZB-V: zero bubble over two stages per rank in a V (Qi et al., "Zero Bubble Pipeline Parallelism",
// arXiv 2401.10241, section 6).
//
// Chunk 0 is the rank's stage on the way down, chunk 1 the one on the way back. The list is that of
// at least 2p - 1 micro-batches, the fewest that reach the steady state; of fewer, those beyond are
// left out, which takes nothing away that another action waits for.
#include <algorithm>

#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

void forward_and_whole_backward(RankWriter& writer) {
  writer.forward(1);
  writer.input_grad(1);
  writer.weight_grad(1);
}

std::vector<Action> rank_actions(const ScheduleShape& shape, int rank, int micro_batches) {
  const int behind = shape.num_ranks - rank;
  RankWriter writer(shape, StagePlacement::v, rank);
  for (int i = 0; i < 2 * behind - 1; ++i) writer.forward(0);
  for (int i = 0; i < rank; ++i) {
    writer.forward(1);
    writer.forward(0);
  }
  for (int i = 0; i < behind; ++i) forward_and_whole_backward(writer);
  while (writer.forwards(1) < micro_batches) {
    if (writer.forwards(0) < micro_batches) writer.forward(0);
    writer.input_grad(0);
    writer.weight_grad(0);
    forward_and_whole_backward(writer);
  }
  for (int i = 0; i < rank; ++i) {
    writer.input_grad(0);
    writer.input_grad(1);
  }
  for (int i = 0; i < behind; ++i) {
    writer.input_grad(0);
    writer.weight_grad(0);
  }
  for (int i = 0; i < rank; ++i) writer.weight_grad(1);
  for (int i = 0; i < rank; ++i) writer.weight_grad(0);
  return writer.take();
}

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  const int enough = std::max(shape.num_micro_batches, 2 * shape.num_ranks - 1);
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Action> list = rank_actions(shape, rank, enough);
    std::erase_if(list, [&](const Action& a) { return a.micro_batch >= shape.num_micro_batches; });
    ranks.push_back(std::move(list));
  }
  return ranks;
}

int max_live(const ScheduleShape& shape, int) {
  return 2 * std::min(shape.num_ranks, shape.num_micro_batches);
}

}  // namespace

ScheduleRow zbv() {
  return {.name = "zbv",
          .doc =
              "zero bubble over two stages per rank in a V: no bubble inside the step when F, I "
              "and W take equal time, at 1f1b's peak of activations on every rank",
          .placement = StagePlacement::v,
          .stages_per_rank = 2,
          .takes = nullptr,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
