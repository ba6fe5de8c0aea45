#include "lib/parallel/timeline_cells.hpp"

namespace llmtrain::parallel {

std::vector<TimelineCell> timeline_cells(const Schedule& schedule, const Simulation& simulation) {
  std::vector<TimelineCell> cells;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (std::size_t i = 0; i < schedule.ranks[r].size(); ++i) {
      const Action& action = schedule.ranks[r][i];
      const Span& span = simulation.ranks[r].actions[i];
      cells.push_back({.action = action,
                       .span = span,
                       .row = static_cast<int>(r),
                       .chunk = action.stage / schedule.shape.num_ranks});
      if (i == 0 || span.seconds() == 0) continue;
      const Span& before = simulation.ranks[r].actions[i - 1];
      if (before.begin != span.begin || before.end != span.end) continue;
      const double middle = (span.begin + span.end) / 2;
      (cells.end() - 2)->span.end = middle;
      cells.back().span.begin = middle;
    }
  }
  return cells;
}

double shortest_action(const std::vector<TimelineCell>& cells) {
  double shortest = 0;
  for (const TimelineCell& cell : cells) {
    const double seconds = cell.span.seconds();
    if (seconds > 0 && (shortest == 0 || seconds < shortest)) shortest = seconds;
  }
  return shortest;
}

}  // namespace llmtrain::parallel
