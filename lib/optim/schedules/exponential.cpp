#include <algorithm>
#include <cmath>
#include <optional>

#include "lib/optim/schedules/curve.hpp"
#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

namespace {

struct ExponentialOptions : EndOptions {
  recipe::Key<std::optional<double>> gamma{
      this, "gamma", std::nullopt,
      "factor per step, never below min_lr_ratio; null: such that the run ends at min_lr_ratio",
      recipe::above(0) & recipe::at_most(1)};

  void validate(recipe::Issues& issues) const override {
    if (!gamma() && min_lr_ratio() == 0) {
      issues.add(min_lr_ratio, "an exponential never reaches 0", "set it above 0, or give a gamma");
    }
  }
};

LrShape make(const LrScheduleChoice& choice, const Horizon& horizon, std::int64_t warmup_steps) {
  const auto& options = choice.as<ExponentialOptions>();
  const auto steps = static_cast<double>(horizon.total_steps - warmup_steps);
  const double end = options.min_lr_ratio();
  if (const std::optional<double> gamma = options.gamma()) {
    return [=, gamma = *gamma](std::int64_t k) {
      return std::max(end, std::pow(gamma, static_cast<double>(k)));
    };
  }
  return [=](std::int64_t k) { return exponential_curve(static_cast<double>(k) / steps, end); };
}

}  // namespace

LrScheduleRow exponential() {
  return {.name = "exponential",
          .doc = "falls by the same factor every step",
          .options = &recipe::section_of<ExponentialOptions>,
          .make = &make};
}

}  // namespace llmtrain::optim::schedules
