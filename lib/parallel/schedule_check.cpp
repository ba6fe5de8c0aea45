#include <algorithm>
#include <array>

#include "lib/base/require.hpp"
#include "lib/parallel/messages.hpp"
#include "lib/parallel/schedule.hpp"
#include "lib/parallel/schedule_walk.hpp"

namespace llmtrain::parallel {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

class ScheduleCheck {
 public:
  explicit ScheduleCheck(const Schedule& schedule) : schedule_(schedule), shape_(schedule.shape) {}

  std::vector<std::string> run() {
    check_places();
    if (!found_.empty()) return std::move(found_);  // the rest indexes by stage and rank
    check_counts();
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
      check_order(r);
      check_live(r);
    }
    check_progress();
    if (found_.empty()) found_ = problems(schedule_, derive_messages(schedule_));
    return std::move(found_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    found_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void check_places();
  void check_counts();
  void check_order(std::size_t rank);
  void check_live(std::size_t rank);
  void check_progress();

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  std::vector<std::string> found_;
};

// Every action names a stage and a micro-batch that there are, on the rank of the stage.
void ScheduleCheck::check_places() {
  const auto ranks = at(shape_.num_ranks);
  if (schedule_.ranks.size() != ranks || schedule_.rank_of_stage.size() != at(shape_.num_stages) ||
      (!schedule_.max_live.empty() && schedule_.max_live.size() != ranks)) {
    add("lists for {} ranks, places for {} stages and {} bounds of live activations, for a shape "
        "of "
        "{} ranks and {} stages",
        schedule_.ranks.size(), schedule_.rank_of_stage.size(), schedule_.max_live.size(),
        shape_.num_ranks, shape_.num_stages);
    return;
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    for (const Action& action : schedule_.ranks[r]) {
      if (action.stage < 0 || action.stage >= shape_.num_stages || action.micro_batch < 0 ||
          action.micro_batch >= shape_.num_micro_batches) {
        add("rank {}: there is no {}", r, to_string(action));
      } else if (schedule_.rank_of_stage[at(action.stage)] != static_cast<int>(r)) {
        add("rank {} runs {}, a stage of rank {}", r, to_string(action),
            schedule_.rank_of_stage[at(action.stage)]);
      }
    }
  }
}

// F once; B once, or I and W once each.
void ScheduleCheck::check_counts() {
  constexpr std::size_t kKinds = 4;
  std::vector<std::array<int, kKinds>> counts(at(shape_.num_stages * shape_.num_micro_batches));
  for (const auto& actions : schedule_.ranks) {
    for (const Action& a : actions) {
      ++counts[at(a.stage * shape_.num_micro_batches + a.micro_batch)]
              [static_cast<std::size_t>(a.kind)];
    }
  }
  for (int s = 0; s < shape_.num_stages; ++s) {
    for (int m = 0; m < shape_.num_micro_batches; ++m) {
      const auto& count = counts[at(s * shape_.num_micro_batches + m)];
      const auto of = [&](ActionKind kind) { return count[static_cast<std::size_t>(kind)]; };
      const int f = of(ActionKind::forward), b = of(ActionKind::backward);
      const int i = of(ActionKind::input_grad), w = of(ActionKind::weight_grad);
      const bool whole = b == 1 && i == 0 && w == 0;
      const bool parts = b == 0 && i == 1 && w == 1;
      if (f == 1 && (whole || parts)) continue;
      add("micro-batch {} on stage {} has {} F, {} B, {} I and {} W: it needs one F, and one B or "
          "one I and one W",
          m, s, f, b, i, w);
    }
  }
}

// On each stage, F before I or B, I before W, and gradients in ascending order of micro-batches,
// because sums of weight gradients have one order.
void ScheduleCheck::check_order(std::size_t rank) {
  struct Stage {
    std::vector<bool> forward, input_grad;
    int last_input = -1, last_weight = -1;
  };
  const auto micro_batches = at(shape_.num_micro_batches);
  std::vector<Stage> stages(at(shape_.num_stages),
                            {std::vector<bool>(micro_batches), std::vector<bool>(micro_batches)});
  const auto ascending = [&](const Action& action, int& last) {
    if (action.micro_batch <= last) {
      add("rank {}: {} after micro-batch {} on the same stage", rank, to_string(action), last);
    }
    last = std::max(last, action.micro_batch);
  };
  for (const Action& action : schedule_.ranks[rank]) {
    Stage& stage = stages[at(action.stage)];
    const bool whole = action.kind == ActionKind::backward;
    if (action.kind == ActionKind::forward) stage.forward[at(action.micro_batch)] = true;
    if (whole || action.kind == ActionKind::input_grad) {
      if (!stage.forward[at(action.micro_batch)]) {
        add("rank {}: {} before its F", rank, to_string(action));
      }
      stage.input_grad[at(action.micro_batch)] = true;
      ascending(action, stage.last_input);
    }
    if (whole || action.kind == ActionKind::weight_grad) {
      if (!stage.input_grad[at(action.micro_batch)]) {
        add("rank {}: {} before its I", rank, to_string(action));
      }
      ascending(action, stage.last_weight);
    }
  }
}

void ScheduleCheck::check_live(std::size_t rank) {
  if (schedule_.max_live.empty()) return;
  int live = 0;
  for (const Action& action : schedule_.ranks[rank]) {
    if (action.kind == ActionKind::forward && ++live > schedule_.max_live[rank]) {
      add("rank {}: with {} the activations of {} micro-batches and stages live, promised are at "
          "most {}",
          rank, to_string(action), live, schedule_.max_live[rank]);
      return;
    }
    if (action.kind == ActionKind::backward || action.kind == ActionKind::weight_grad) --live;
  }
}

// Runs all ranks side by side, pairs begun apart and together.
void ScheduleCheck::check_progress() {
  for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) {
    const auto& actions = schedule_.ranks[r];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (!actions[i].overlaps_next) continue;
      const bool pair = actions[i].kind == ActionKind::forward && i + 1 < actions.size() &&
                        actions[i + 1].kind == ActionKind::backward &&
                        actions[i + 1].stage != actions[i].stage;
      if (!pair) {
        add("rank {}: beside {} runs no B of another stage", r, to_string(actions[i]));
        return;
      }
    }
  }
  const DataFlow flow(schedule_);
  for (const Pairs pairs : {Pairs::apart, Pairs::together}) {
    const auto visited = walk(schedule_, flow, pairs, [](Position) {});
    for (std::size_t r = 0; r < visited.size(); ++r) {
      if (visited[r] < schedule_.ranks[r].size()) {
        add("rank {} waits for ever before {}{}", r, to_string(schedule_.ranks[r][visited[r]]),
            pairs == Pairs::together ? " when pairs are begun together" : "");
      }
    }
    if (!found_.empty()) return;
  }
}

}  // namespace

std::vector<std::string> problems(const Schedule& schedule) {
  return ScheduleCheck(schedule).run();
}

std::string check(const Schedule& schedule) {
  return fmt::format("{}", fmt::join(problems(schedule), "\n"));
}

}  // namespace llmtrain::parallel
