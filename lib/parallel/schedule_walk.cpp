#include "lib/parallel/schedule_walk.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::parallel {

DataFlow::DataFlow(const Schedule& schedule) : shape_(schedule.shape) {
  const auto cells = static_cast<std::size_t>(shape_.num_stages) *
                     static_cast<std::size_t>(shape_.num_micro_batches);
  forwards_.resize(cells);
  gradients_.resize(cells);
  for (int r = 0; r < static_cast<int>(schedule.ranks.size()); ++r) {
    const auto& actions = schedule.ranks[static_cast<std::size_t>(r)];
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      const Action& action = actions[static_cast<std::size_t>(i)];
      if (action.kind == ActionKind::weight_grad) continue;
      auto& by = action.kind == ActionKind::forward ? forwards_ : gradients_;
      Position& made = by[cell(action.stage, action.micro_batch)];
      if (!made.exists()) made = {r, i};
    }
  }
}

std::size_t DataFlow::cell(int stage, int micro_batch) const {
  return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.num_micro_batches) +
         static_cast<std::size_t>(micro_batch);
}

DataFlow::Inputs DataFlow::inputs(const Action& action) const {
  Inputs inputs;
  const auto add = [&](const std::vector<Position>& by, int stage) {
    inputs.from[static_cast<std::size_t>(inputs.count++)] = by[cell(stage, action.micro_batch)];
  };
  switch (action.kind) {
    case ActionKind::forward:
      if (action.stage > 0) add(forwards_, action.stage - 1);
      break;
    case ActionKind::backward:
    case ActionKind::input_grad:
      add(forwards_, action.stage);
      if (action.stage < shape_.num_stages - 1) add(gradients_, action.stage + 1);
      break;
    case ActionKind::weight_grad:
      add(gradients_, action.stage);
      break;
  }
  return inputs;
}

std::vector<std::size_t> walk(const Schedule& schedule, const DataFlow& flow, Pairs pairs,
                              const std::function<void(Position)>& visit) {
  std::vector<std::size_t> next(schedule.ranks.size(), 0);
  const auto visited = [&](Position at) {
    return at.exists() &&
           static_cast<std::size_t>(at.index) < next[static_cast<std::size_t>(at.rank)];
  };
  const auto ready = [&](const Action& action) {
    return std::ranges::all_of(flow.inputs(action).all(), visited);
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      const auto& actions = schedule.ranks[r];
      for (; next[r] < actions.size(); ++next[r]) {
        const Action& action = actions[next[r]];
        const bool pair = pairs == Pairs::together && action.overlaps_next;
        if (!ready(action) || (pair && !ready(actions.at(next[r] + 1)))) break;
        visit({static_cast<int>(r), static_cast<int>(next[r])});
        moved = true;
      }
    }
  }
  return next;
}

double Times::last() const {
  double last = 0;
  for (const auto& ends : end) last = std::max(last, ends.empty() ? 0 : ends.back());
  return last;
}

Times times_without_messages(const Schedule& schedule, const DataFlow& flow) {
  Times times;
  for (const auto& actions : schedule.ranks) {
    times.begin.emplace_back(actions.size());
    times.end.emplace_back(actions.size());
  }
  const auto end = [&](Position at) -> double& {
    return times.end[static_cast<std::size_t>(at.rank)][static_cast<std::size_t>(at.index)];
  };
  const auto visited = walk(schedule, flow, Pairs::apart, [&](Position at) {
    const Action& action = action_at(schedule, at);
    double begin = at.index == 0 ? 0 : end({at.rank, at.index - 1});
    for (const Position from : flow.inputs(action).all()) begin = std::max(begin, end(from));
    times.begin[static_cast<std::size_t>(at.rank)][static_cast<std::size_t>(at.index)] = begin;
    end(at) = begin + schedule.shape.costs.of(action.kind);
  });
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    if (visited[r] < schedule.ranks[r].size()) {
      fail("rank {} waits for ever before {}", r, to_string(schedule.ranks[r][visited[r]]));
    }
  }
  return times;
}

}  // namespace llmtrain::parallel
