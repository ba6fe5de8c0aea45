#pragma once
/// The recipe keys that the training loop asks at every step.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/geometry.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Read once during set-up, so that a key nobody reads is found before the first step.
struct LoopOptions {
  explicit LoopOptions(const Recipe& recipe)
      : num_epochs(recipe.training.num_epochs()),
        max_time(recipe.training.max_time()),
        save_interval(recipe.checkpoint.interval()),
        local_interval(recipe.checkpoint.local.interval()),
        keep_every(static_cast<std::int64_t>(recipe.checkpoint.keep_every().value)),
        saves_locally(recipe.checkpoint.local.directory().has_value()),
        eval_interval(recipe.eval.interval()),
        eval_at_start(recipe.eval.at_start()),
        eval_max_samples(recipe.eval.max_samples()),
        patience(recipe.eval.patience()),
        sample_prompts(recipe.eval.sample_prompts()),
        sample_tokens(static_cast<std::int64_t>(recipe.eval.sample_tokens().value)),
        metrics_interval(static_cast<std::int64_t>(recipe.metrics.interval().value)),
        diagnostics_interval(recipe.metrics.diagnostics_interval()),
        on_non_finite(recipe.resilience.on_non_finite()),
        on_loss_spike(recipe.resilience.on_loss_spike()),
        loss_spike_factor(recipe.resilience.loss_spike_factor()),
        loss_spike_window(static_cast<std::int64_t>(recipe.resilience.loss_spike_window().value)),
        max_skipped_steps(static_cast<std::int64_t>(recipe.resilience.max_skipped_steps().value)),
        max_rollbacks(static_cast<std::int64_t>(recipe.resilience.max_rollbacks().value)),
        checksum_every(static_cast<std::int64_t>(recipe.resilience.checksum_every().value)),
        max_restarts(
            static_cast<std::int64_t>(recipe.resilience.max_restarts_without_progress().value)) {}

  std::int64_t total_steps(const engine::BatchGeometry& geometry,
                           const engine::TrainingSection& training,
                           std::uint64_t epoch_size) const {
    if (const auto steps = geometry.total_steps(training)) return *steps;
    return geometry.steps_for_samples(
        static_cast<std::uint64_t>(std::ceil(*num_epochs * static_cast<double>(epoch_size))));
  }

  /// Part of training.max_time that is over.
  double time_over(double elapsed_seconds) const {
    return max_time ? elapsed_seconds / max_time->seconds : 0;
  }
  /// Where a save is due after a step; nothing where none is. The times are those since the last
  /// save that was durable, and since the last one.
  std::optional<Tier> due_save(std::int64_t step, double since_durable, double since_any) const {
    const bool kept_for_good = keep_every > 0 && step % keep_every == 0;
    const bool due = save_interval && is_due(*save_interval, step, since_durable);
    if (kept_for_good || due) return Tier::durable;
    if (saves_locally && is_due(local_interval, step, since_any)) return Tier::local;
    return std::nullopt;
  }
  /// Whether a save of a step is one that every run of the recipe makes, and none that somebody
  /// asked for; a durable one may stand in for a local one. Where a clock decides, all are.
  bool is_due_by_step(std::int64_t step, Tier tier) const {
    constexpr double kAnyTime = std::numeric_limits<double>::infinity();
    const bool durable = tier == Tier::durable;
    const std::optional<Tier> due = due_save(step, durable ? kAnyTime : 0, kAnyTime);
    return durable ? due.has_value() : due == Tier::local;
  }
  bool eval_is_due(std::int64_t step) const {
    return eval_interval && step % static_cast<std::int64_t>(eval_interval->value) == 0;
  }
  bool checksum_is_due(std::int64_t step) const {
    return checksum_every > 0 && step % checksum_every == 0;
  }
  bool diagnosis_is_due(std::int64_t step) const {
    return diagnostics_interval &&
           step % static_cast<std::int64_t>(diagnostics_interval->value) == 0;
  }
  bool goes_back() const {
    return on_non_finite == OnBadStep::rollback || on_loss_spike == OnBadStep::rollback;
  }
  bool out_of_patience(std::int64_t evals_without_progress) const {
    return patience && static_cast<std::uint64_t>(evals_without_progress) >= patience->value;
  }

  std::optional<double> num_epochs;
  std::optional<recipe::Duration> max_time;
  std::optional<recipe::Interval> save_interval;
  recipe::Interval local_interval;
  std::int64_t keep_every;
  bool saves_locally;
  std::optional<recipe::Count> eval_interval;
  bool eval_at_start;
  std::optional<recipe::Count> eval_max_samples, patience;
  std::vector<std::string> sample_prompts;
  std::int64_t sample_tokens, metrics_interval;
  std::optional<recipe::Count> diagnostics_interval;
  OnBadStep on_non_finite, on_loss_spike;
  double loss_spike_factor;
  std::int64_t loss_spike_window, max_skipped_steps, max_rollbacks, checksum_every, max_restarts;

 private:
  static bool is_due(const recipe::Interval& interval, std::int64_t step, double since) {
    if (interval.unit == recipe::Interval::Unit::seconds) return since >= interval.seconds;
    return interval.count > 0 && step % static_cast<std::int64_t>(interval.count) == 0;
  }
};

}  // namespace llmtrain::train
