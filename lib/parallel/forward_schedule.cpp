#include "lib/parallel/schedule.hpp"

namespace llmtrain::parallel {

// Ranks run side by side, every F takes one turn. Of what is ready a rank takes the last stage,
// which frees most and is what others wait for. Stages have their turn from the last to the first,
// so that none reads what was made in the same turn.
Schedule forward_schedule(const ScheduleRow& row, const ScheduleShape& shape) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  Schedule schedule{.shape = shape, .rank_of_stage = {}, .ranks = {}};
  schedule.ranks.resize(at(shape.num_ranks));
  for (int s = 0; s < shape.num_stages; ++s) {
    schedule.rank_of_stage.push_back(row.rank_of_stage(shape, s));
  }
  std::vector<int> made(at(shape.num_stages));  // micro-batches of each stage
  while (made.back() < shape.num_micro_batches) {
    std::vector<bool> busy(at(shape.num_ranks));
    for (int s = shape.num_stages - 1; s >= 0; --s) {
      const int ready = s == 0 ? shape.num_micro_batches : made[at(s - 1)];
      const std::size_t rank = at(schedule.rank_of_stage[at(s)]);
      if (busy[rank] || made[at(s)] == ready) continue;
      busy[rank] = true;
      schedule.ranks[rank].push_back({ActionKind::forward, s, made[at(s)]++});
    }
  }
  return schedule;
}

}  // namespace llmtrain::parallel
