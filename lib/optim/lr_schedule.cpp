#include "lib/optim/lr_schedule.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::optim {

Horizon Horizon::uniform(std::int64_t total_steps, std::uint64_t tokens_per_step) {
  return {total_steps, [tokens_per_step](std::int64_t step) {
            return static_cast<std::uint64_t>(step - 1) * tokens_per_step;
          }};
}

namespace {

// Smallest n in [0, total] for which enough(n), which never turns false again; total + 1 if none
// is.
template <class Enough>
std::int64_t smallest(std::int64_t total, const Enough& enough) {
  std::int64_t low = 0;
  std::int64_t high = total + 1;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (enough(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::int64_t without_tokens(const recipe::Span& span, std::int64_t total) {
  const std::uint64_t steps = span.in_steps(static_cast<std::uint64_t>(total), 1);
  return static_cast<std::int64_t>(std::min(steps, static_cast<std::uint64_t>(total) + 1));
}

}  // namespace

std::int64_t steps_from_start(const recipe::Span& span, const Horizon& horizon) {
  const std::int64_t total = horizon.total_steps;
  if (span.unit != recipe::Span::Unit::tokens) return without_tokens(span, total);
  return smallest(total,
                  [&](std::int64_t n) { return horizon.tokens_before(n + 1) >= span.count; });
}

std::int64_t steps_to_end(const recipe::Span& span, const Horizon& horizon) {
  const std::int64_t total = horizon.total_steps;
  if (span.unit != recipe::Span::Unit::tokens) return without_tokens(span, total);
  const std::uint64_t all = horizon.tokens_before(total + 1);
  return smallest(total, [&](std::int64_t n) {
    return all - horizon.tokens_before(total + 1 - n) >= span.count;
  });
}

LrSchedule::LrSchedule(const LrSchedulerOptions& options, const Horizon& horizon)
    : total_steps_(horizon.total_steps),
      warmup_steps_(steps_from_start(options.warmup(), horizon)),
      horizon_(options.horizon()) {
  require(total_steps_ >= 0, "a run of {} steps", total_steps_);
  if (warmup_steps_ > total_steps_) {
    throw recipe::RefusedValue(options.warmup,
                               fmt::format("{} is longer than the run of {} steps",
                                           options.warmup.value_text(), total_steps_),
                               "shorten it or train longer");
  }
  shape_ = options.type().make(options.type, horizon, warmup_steps_);
}

double LrSchedule::factor(std::int64_t step, double time_over) const {
  require(step >= 1 && step <= total_steps_, "learning rate of step {} in a run of {} steps", step,
          total_steps_);
  if (horizon_ == LrHorizon::time) {
    const double steps_over = std::min(time_over, 1.0) * static_cast<double>(total_steps_);
    step = std::max(step, std::min(static_cast<std::int64_t>(steps_over) + 1, total_steps_));
  }
  if (step <= warmup_steps_) return static_cast<double>(step) / static_cast<double>(warmup_steps_);
  return shape_(step - warmup_steps_ - 1);
}

}  // namespace llmtrain::optim
