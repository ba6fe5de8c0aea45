#include "lib/optim/schedules/curve.hpp"
#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

namespace {
LrShape make(const LrScheduleChoice& choice, const Horizon& horizon, std::int64_t warmup_steps) {
  const auto steps = static_cast<double>(horizon.total_steps - warmup_steps);
  const double end = choice.as<EndOptions>().min_lr_ratio();
  return [=](std::int64_t k) { return linear_curve(static_cast<double>(k) / steps, end); };
}
}  // namespace

LrScheduleRow linear() {
  return {.name = "linear",
          .doc = "falls on a straight line",
          .options = &recipe::section_of<EndOptions>,
          .make = &make};
}

}  // namespace llmtrain::optim::schedules
