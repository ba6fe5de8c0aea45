// Half a cosine, or several one after another (SGDR, arXiv 1608.03983).
#include <algorithm>
#include <vector>

#include "lib/base/require.hpp"
#include "lib/optim/schedules/curve.hpp"
#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

namespace {

struct CosineOptions : EndOptions {
  recipe::Key<int> num_cycles{this, "num_cycles", 1, "number of falls, each from the peak",
                              recipe::between(1, 1000)};
  recipe::Key<double> cycle_mult{this, "cycle_mult", 1.0,
                                 "each cycle is this many times as long as the one before",
                                 recipe::at_least(1)};

  void validate(recipe::Issues& issues) const override {
    if (cycle_mult() != 1 && num_cycles() == 1) {
      issues.add(cycle_mult, "has no effect on a single cycle", "set num_cycles above 1");
    }
  }
};

// First step of each cycle, and the end of the last. Whole numbers of steps whenever `mult` is
// whole and the division comes out even.
std::vector<double> cycle_bounds(double steps, int cycles, double mult) {
  std::vector<double> bounds{0};
  double length = 1;
  for (int c = 0; c < cycles; ++c) {
    bounds.push_back(bounds.back() + length);
    length *= mult;
  }
  const double all = bounds.back();
  for (double& bound : bounds) bound = steps * bound / all;
  return bounds;
}

LrShape make(const LrScheduleChoice& choice, const Horizon& horizon, std::int64_t warmup_steps) {
  const auto& options = choice.as<CosineOptions>();
  const double end = options.min_lr_ratio();
  const std::int64_t steps = horizon.total_steps - warmup_steps;
  const std::vector<double> bounds =
      cycle_bounds(static_cast<double>(steps), options.num_cycles(), options.cycle_mult());
  if (steps > 0 && bounds[1] < 1) {
    throw recipe::RefusedValue(
        options.num_cycles,
        fmt::format("the first of {} cycles in {} steps is shorter than a step",
                    options.num_cycles(), steps),
        "lower num_cycles or cycle_mult");
  }
  return [=](std::int64_t k) {
    const auto at = static_cast<double>(k);
    const auto next = std::upper_bound(bounds.begin(), bounds.end(), at);
    const double begin = *(next - 1);
    return cosine_curve((at - begin) / (*next - begin), end);
  };
}

}  // namespace

LrScheduleRow cosine() {
  return {.name = "cosine",
          .doc = "falls on half a cosine, optionally with restarts",
          .options = &recipe::section_of<CosineOptions>,
          .make = &make};
}

}  // namespace llmtrain::optim::schedules
