#include "lib/parallel/schedule.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "lib/base/require.hpp"

namespace llmtrain::parallel {

std::string to_string(const Action& action) {
  constexpr std::array<char, 4> kLetters{'F', 'B', 'I', 'W'};
  return fmt::format("{}{}@{}", kLetters[static_cast<int>(action.kind)], action.micro_batch,
                     action.stage);
}

namespace {

Schedule one_stage_per_rank(const ScheduleShape& shape) {
  require(shape.num_stages == shape.num_ranks, "this schedule has one stage per rank, not {} on {}",
          shape.num_stages, shape.num_ranks);
  Schedule schedule{.shape = shape, .rank_of_stage = {}, .ranks = {}};
  for (int s = 0; s < shape.num_stages; ++s) schedule.rank_of_stage.push_back(s);
  schedule.ranks.resize(static_cast<std::size_t>(shape.num_ranks));
  return schedule;
}

// Narayanan et al., SC'21 (arXiv 2104.04473): a warm-up of forwards, then one forward, one
// backward.
Schedule make_1f1b(const ScheduleShape& shape) {
  Schedule schedule = one_stage_per_rank(shape);
  for (int s = 0; s < shape.num_stages; ++s) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(s)];
    const int ahead = std::min(shape.num_stages - 1 - s, shape.num_micro_batches);
    for (int m = 0; m < ahead; ++m) actions.push_back({ActionKind::forward, s, m});
    for (int m = 0; m < shape.num_micro_batches; ++m) {
      if (m + ahead < shape.num_micro_batches) {
        actions.push_back({ActionKind::forward, s, m + ahead});
      }
      actions.push_back({ActionKind::backward, s, m});
    }
  }
  return schedule;
}

// Huang et al. (arXiv 1811.06965): all forwards, then all backwards.
Schedule make_gpipe(const ScheduleShape& shape) {
  Schedule schedule = one_stage_per_rank(shape);
  for (int s = 0; s < shape.num_stages; ++s) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(s)];
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
      for (int m = 0; m < shape.num_micro_batches; ++m) actions.push_back({kind, s, m});
    }
  }
  return schedule;
}

constexpr std::array kRows{
    ScheduleRow{"1f1b", "one forward, one backward: least memory", &make_1f1b},
    ScheduleRow{"gpipe", "all forwards, then all backwards", &make_gpipe},
};

using Done = std::set<std::array<int, 3>>;

std::array<int, 3> key(ActionKind kind, int stage, int micro_batch) {
  return {static_cast<int>(kind), stage, micro_batch};
}

// Whether what `action` waits for on any rank has been done.
bool ready(const Action& action, const ScheduleShape& shape, const Done& done) {
  const auto has = [&](ActionKind kind, int stage) {
    return done.contains(key(kind, stage, action.micro_batch));
  };
  switch (action.kind) {
    case ActionKind::forward:
      return action.stage == 0 || has(ActionKind::forward, action.stage - 1);
    case ActionKind::backward:
    case ActionKind::input_grad:
      return has(ActionKind::forward, action.stage) &&
             (action.stage == shape.num_stages - 1 || has(ActionKind::backward, action.stage + 1) ||
              has(ActionKind::input_grad, action.stage + 1));
    case ActionKind::weight_grad:
      return has(ActionKind::input_grad, action.stage);
  }
  return false;
}

// Runs all ranks side by side; returns the action that can never start, if any.
std::string deadlock(const Schedule& schedule, Done& done) {
  std::vector<std::size_t> next(schedule.ranks.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
      while (next[r] < schedule.ranks[r].size()) {
        const Action& action = schedule.ranks[r][next[r]];
        if (!ready(action, schedule.shape, done)) break;
        if (!done.insert(key(action.kind, action.stage, action.micro_batch)).second) {
          return fmt::format("{} appears twice", to_string(action));
        }
        ++next[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    if (next[r] < schedule.ranks[r].size()) {
      return fmt::format("rank {} waits for ever before {}", r,
                         to_string(schedule.ranks[r][next[r]]));
    }
  }
  return "";
}

// I, W and B of a stage in ascending micro-batch order, and every stage on its own rank.
std::string order_mistake(const Schedule& schedule) {
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    std::vector<std::array<int, 4>> last(static_cast<std::size_t>(schedule.shape.num_stages),
                                         {-1, -1, -1, -1});
    for (const Action& action : schedule.ranks[r]) {
      if (schedule.rank_of_stage[static_cast<std::size_t>(action.stage)] != static_cast<int>(r)) {
        return fmt::format("rank {} runs {}, a stage of another rank", r, to_string(action));
      }
      int& previous =
          last[static_cast<std::size_t>(action.stage)][static_cast<std::size_t>(action.kind)];
      if (action.micro_batch <= previous) {
        return fmt::format("rank {}: {} after micro-batch {}", r, to_string(action), previous);
      }
      previous = action.micro_batch;
    }
  }
  return "";
}

}  // namespace

std::span<const ScheduleRow> schedules() { return kRows; }

const ScheduleRow& find_schedule(std::string_view name) {
  const auto row = std::find_if(kRows.begin(), kRows.end(),
                                [&](const ScheduleRow& r) { return r.name == name; });
  require(row != kRows.end(), "no schedule {}", name);
  return *row;
}

std::string check(const Schedule& schedule) {
  if (std::string mistake = order_mistake(schedule); !mistake.empty()) return mistake;
  Done done;
  if (std::string mistake = deadlock(schedule, done); !mistake.empty()) return mistake;
  for (int s = 0; s < schedule.shape.num_stages; ++s) {
    for (int m = 0; m < schedule.shape.num_micro_batches; ++m) {
      const bool whole = done.contains(key(ActionKind::backward, s, m));
      const bool parts = done.contains(key(ActionKind::input_grad, s, m)) &&
                         done.contains(key(ActionKind::weight_grad, s, m));
      if (whole == parts) {
        return fmt::format("the backward of micro-batch {} on stage {} is incomplete or double", m,
                           s);
      }
    }
  }
  return "";
}

}  // namespace llmtrain::parallel
