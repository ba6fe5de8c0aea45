#pragma once
/// What all pictures of a timeline draw.

#include <vector>

#include "lib/parallel/simulator.hpp"

namespace llmtrain::parallel {

/// One action as it is drawn.
struct TimelineCell {
  Action action;
  Span span;    // of a pair that runs side by side, this action's half
  int row = 0;  // the rank
  /// 0 for the rank's first stage, 1 for its second ..
  int chunk = 0;
};
std::vector<TimelineCell> timeline_cells(const Schedule& schedule, const Simulation& simulation);

/// Seconds of the shortest action that takes time; 0 when none does.
double shortest_action(const std::vector<TimelineCell>& cells);

}  // namespace llmtrain::parallel
