#include <algorithm>
#include <cmath>

#include "lib/base/require.hpp"
#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

namespace {

struct StepOptions : recipe::Section {
  recipe::Key<recipe::Span> step_size{this, "step_size", recipe::Span::percents(30),
                                      "steps between two falls, counted from the warm-up's end"};
  recipe::Key<double> gamma{this, "gamma", 0.1, "factor of each fall",
                            recipe::above(0) & recipe::at_most(1)};
  recipe::Key<double> min_lr_ratio{this, "min_lr_ratio", 0.0,
                                   "the learning rate never falls below this fraction of its peak",
                                   recipe::between(0, 1)};
};

LrShape make(const LrScheduleChoice& choice, const Horizon& horizon, std::int64_t) {
  const auto& options = choice.as<StepOptions>();
  const double gamma = options.gamma();
  const double floor = options.min_lr_ratio();
  const std::int64_t step_size = steps_from_start(options.step_size(), horizon);
  if (step_size < 1 && horizon.total_steps > 0) {
    throw recipe::RefusedValue(options.step_size,
                               fmt::format("{} of {} steps is less than one step",
                                           options.step_size.value_text(), horizon.total_steps),
                               "give at least 1");
  }
  return [=](std::int64_t k) {
    return std::max(floor, std::pow(gamma, static_cast<double>(k / step_size)));
  };
}

}  // namespace

LrScheduleRow step() {
  return {.name = "step",
          .doc = "falls by a factor every step_size steps",
          .options = &recipe::section_of<StepOptions>,
          .make = &make};
}

}  // namespace llmtrain::optim::schedules
