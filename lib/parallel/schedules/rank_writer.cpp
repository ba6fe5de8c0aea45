#include "lib/base/require.hpp"
#include "lib/parallel/schedules/rows.hpp"

namespace llmtrain::parallel::rows {

RankWriter::RankWriter(const ScheduleShape& shape, StagePlacement placement, int rank) {
  for (int s = 0; s < shape.num_stages; ++s) {
    if (rank_of_stage(placement, shape, s) == rank) chunks_.push_back({.stage = s});
  }
}

void RankWriter::forward(int chunk) {
  actions_.push_back({ActionKind::forward, stage(chunk), at(chunk).forwards++});
}

void RankWriter::backward(int chunk) {
  Chunk& c = at(chunk);
  require(c.input_grads == c.weight_grads, "B would overtake {} W", c.input_grads - c.weight_grads);
  actions_.push_back({ActionKind::backward, c.stage, c.input_grads++});
  ++c.weight_grads;
}

void RankWriter::input_grad(int chunk) {
  actions_.push_back({ActionKind::input_grad, stage(chunk), at(chunk).input_grads++});
  waiting_.push_back(chunk);
}

void RankWriter::weight_grad(int chunk) {
  actions_.push_back({ActionKind::weight_grad, stage(chunk), at(chunk).weight_grads++});
}

void RankWriter::forward_beside_backward(int forward_chunk, int backward_chunk) {
  forward(forward_chunk);
  actions_.back().overlaps_next = true;
  backward(backward_chunk);
}

void RankWriter::oldest_weight_grad() {
  require(next_waiting_ < waiting_.size(), "no I waits for its W");
  weight_grad(waiting_[next_waiting_++]);
}

std::vector<std::vector<Action>> behind_warm_up(const ScheduleShape& shape,
                                                int (*warm_up)(const ScheduleShape&, int rank)) {
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

}  // namespace llmtrain::parallel::rows
