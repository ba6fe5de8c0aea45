#pragma once
/// The learning rate over a run, and the recipe section `lr_scheduler`.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "lib/recipe/quantity.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::optim {

/// The run that a schedule spans; steps count from 1.
struct Horizon {
  std::int64_t total_steps = 0;
  /// Tokens consumed before a step, 1 <= step <= total_steps + 1; never falls. A batch-size ramp is
  /// such a function.
  std::function<std::uint64_t(std::int64_t step)> tokens_before;

  static Horizon uniform(std::int64_t total_steps, std::uint64_t tokens_per_step);
};

/// Steps that `span` takes from the first step on: percents of the total to the nearest step,
/// tokens up to whole steps. total_steps + 1 when the run is shorter than the span.
std::int64_t steps_from_start(const recipe::Span& span, const Horizon& horizon);
/// The same, counted back from the last step.
std::int64_t steps_to_end(const recipe::Span& span, const Horizon& horizon);

/// Factor of the step that follows `k` others after the warm-up, 0 <= k < total_steps -
/// warmup_steps. Copies and outlives what it was made from.
using LrShape = std::function<double(std::int64_t k)>;

struct LrScheduleRow;
using LrScheduleChoice = recipe::Choice<LrScheduleRow>;

struct LrScheduleRow {
  std::string_view name, doc;
  /// Keys that only this schedule has; may be null.
  std::unique_ptr<recipe::Section> (*options)();
  /// `choice` has this row selected. recipe::RefusedValue when the schedule does not fit into the
  /// run.
  LrShape (*make)(const LrScheduleChoice& choice, const Horizon& horizon,
                  std::int64_t warmup_steps);
};

std::span<const LrScheduleRow> lr_schedule_table();

/// What the schedule is stretched over.
enum class LrHorizon : std::uint8_t { steps, time };

struct LrSchedulerOptions : recipe::Section {
  LrScheduleChoice type{this, "type", lr_schedule_table(), "cosine", "how the learning rate falls"};
  recipe::Key<recipe::Span> warmup{this, "warmup", recipe::Span::percents(1),
                                   "linear rise of the learning rate at the start"};
  recipe::Key<LrHorizon> horizon{
      this, "horizon", LrHorizon::steps,
      "what the schedule spans: the run's steps, or with `time` also training.max_time: whichever "
      "is further along counts, so that the schedule ends when time ends the run (and no two runs "
      "are equal)",
      recipe::one_of<LrHorizon>({{"steps", LrHorizon::steps}, {"time", LrHorizon::time}})};
};

/// A pure function of the step, the same for every layout and after every resume; with
/// LrHorizon::time also of the time.
class LrSchedule {
 public:
  /// recipe::RefusedValue when warm-up and schedule do not fit into the run.
  LrSchedule(const LrSchedulerOptions& options, const Horizon& horizon);

  /// Factor on optimizer.lr at `step`, 1 <= step <= total_steps (InternalError otherwise): in the
  /// warm-up step / warmup_steps, so that the first step already learns; afterwards the shape. A
  /// shape starts at 1 and reaches its end value one step after the run, as PyTorch's do.
  ///
  /// `time_over` is the part of the run's time that is over before the step, 0 or more. With
  /// LrHorizon::time a step that begins later than its share of the time takes the factor of the
  /// step whose share that is.
  double factor(std::int64_t step, double time_over = 0) const;
  std::int64_t warmup_steps() const { return warmup_steps_; }
  std::int64_t total_steps() const { return total_steps_; }

 private:
  std::int64_t total_steps_, warmup_steps_;
  LrHorizon horizon_;
  LrShape shape_;
};

}  // namespace llmtrain::optim
