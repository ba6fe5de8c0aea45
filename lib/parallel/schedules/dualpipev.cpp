// DualPipeV: DeepSeek's DualPipe cut in half, so that one copy of the parameters is enough
// (DeepSeek-V3, arXiv 2412.19437, section 3.2.1; "cut-in-half", Qi et al. 2025; the phases are
// those of github.com/deepseek-ai/DualPipe).
//
// Two stages per rank in a V. In the steady state each F runs beside a B of the rank's other stage:
// while one waits for its experts' all-to-all, the other multiplies.
#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

namespace {

// The last phases put the weight parts off: of rank + 1 B of each stage the second half is I alone.
void begin_to_defer(RankWriter& writer, int rank) {
  const int backwards = 2 * (rank + 1);
  for (int i = 0; i < backwards; ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    if (i < backwards / 2) {
      writer.backward(chunk);
    } else {
      writer.input_grad(chunk);
    }
  }
}

std::vector<Action> rank_actions(const ScheduleShape& shape, int rank) {
  const int behind = shape.num_ranks - 1 - rank;
  RankWriter writer(shape, StagePlacement::v, rank);
  for (int i = 0; i < 2 * behind; ++i) writer.forward(0);
  for (int i = 0; i < rank + 1; ++i) {
    writer.forward(0);
    writer.forward(1);
  }
  for (int i = 0; i < behind; ++i) {
    writer.input_grad(1);
    writer.oldest_weight_grad();
    writer.forward(1);
  }
  for (int i = 0; i < shape.num_micro_batches - 2 * shape.num_ranks + rank + 1; ++i) {
    // The last rank takes its first two one after the other, for a smaller bubble.
    if (i == 0 && behind == 0) {
      writer.forward(0);
      writer.backward(1);
    } else {
      writer.forward_beside_backward(0, 1);
    }
    writer.forward_beside_backward(1, 0);
  }
  for (int i = 0; i < behind; ++i) {
    writer.backward(1);
    writer.forward_beside_backward(1, 0);
  }
  begin_to_defer(writer, rank);
  for (int i = 0; i < behind; ++i) {
    writer.oldest_weight_grad();
    writer.input_grad(0);
  }
  for (int i = 0; i < rank + 1; ++i) writer.oldest_weight_grad();
  return writer.take();
}

std::vector<std::vector<Action>> actions(const ScheduleShape& shape) {
  std::vector<std::vector<Action>> ranks;
  for (int rank = 0; rank < shape.num_ranks; ++rank) ranks.push_back(rank_actions(shape, rank));
  return ranks;
}

bool takes(const ScheduleShape& shape) { return shape.num_micro_batches >= 2 * shape.num_ranks; }

int max_live(const ScheduleShape& shape, int) { return 2 * shape.num_ranks + 1; }

}  // namespace

ScheduleRow dualpipev() {
  return {.name = "dualpipev",
          .doc =
              "two stages per rank in a V, forwards beside backwards: hides the all-to-all of "
              "experts",
          .placement = StagePlacement::v,
          .stages_per_rank = 2,
          .takes = &takes,
          .actions = &actions,
          .max_live = &max_live};
}

}  // namespace llmtrain::parallel::rows
