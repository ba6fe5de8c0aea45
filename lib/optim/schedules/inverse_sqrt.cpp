// "Attention is all you need" (arXiv 1706.03762), section 5.3, in the form of transformers'
// get_inverse_sqrt_schedule.
#include <cmath>
#include <optional>

#include "lib/optim/schedules/rows.hpp"

namespace llmtrain::optim::schedules {

namespace {

constexpr std::int64_t kTimescaleWithoutWarmup = 10'000;

struct InverseSqrtOptions : recipe::Section {
  recipe::Key<std::optional<recipe::Count>> timescale{
      this, "timescale", std::nullopt,
      "steps after which the rate has fallen by 1 / sqrt(2); null: those of the warm-up, or 10000 "
      "without one",
      recipe::at_least(1)};
};

LrShape make(const LrScheduleChoice& choice, const Horizon&, std::int64_t warmup_steps) {
  const std::optional<recipe::Count> given = choice.as<InverseSqrtOptions>().timescale();
  const std::int64_t steps = given              ? static_cast<std::int64_t>(given->value)
                             : warmup_steps > 0 ? warmup_steps
                                                : kTimescaleWithoutWarmup;
  const auto timescale = static_cast<double>(steps);
  return
      [=](std::int64_t k) { return std::sqrt(timescale / (timescale + static_cast<double>(k))); };
}

}  // namespace

LrScheduleRow inverse_sqrt() {
  return {.name = "inverse_sqrt",
          .doc = "falls with the root of the steps and never reaches an end",
          .options = &recipe::section_of<InverseSqrtOptions>,
          .make = &make};
}

}  // namespace llmtrain::optim::schedules
