#pragma once
/// The recipe's `resilience`: what to do when things go wrong.

#include <cstdint>

#include "lib/recipe/load.hpp"

namespace llmtrain::train {

/// What to do about a step that says that something is wrong.
enum class OnBadStep : std::uint8_t { ignore, stop, skip, rollback };

struct ResilienceSection : recipe::Section {
  recipe::Key<OnBadStep> on_non_finite{
      this, "on_non_finite", OnBadStep::stop,
      "a loss or gradient that is NaN or infinite: stop the run, skip the step and go on, or go "
      "back to the newest checkpoint and leave out the samples since then",
      recipe::one_of<OnBadStep>({{"stop", OnBadStep::stop},
                                 {"skip", OnBadStep::skip},
                                 {"rollback", OnBadStep::rollback}})};
  recipe::Key<OnBadStep> on_loss_spike{
      this, "on_loss_spike", OnBadStep::ignore,
      "a loss far above those before it: train on it like on any other, or as on_non_finite",
      recipe::one_of<OnBadStep>({{"ignore", OnBadStep::ignore},
                                 {"stop", OnBadStep::stop},
                                 {"skip", OnBadStep::skip},
                                 {"rollback", OnBadStep::rollback}})};
  recipe::Key<double> loss_spike_factor{
      this, "loss_spike_factor", 2.0,
      "a loss above so many times the median of the last loss_spike_window ones is a spike",
      recipe::above(1.0)};
  recipe::Key<recipe::Count> loss_spike_window{
      this, "loss_spike_window", 100,
      "steps that a spike is held against; before there are as many nothing is one",
      recipe::between(1, 100000)};
  recipe::Key<recipe::Count> max_skipped_steps{
      this, "max_skipped_steps", 3,
      "with skip: most skipped steps in a row; one more stops the run", recipe::at_least(1)};
  recipe::Key<recipe::Count> max_rollbacks{
      this, "max_rollbacks", 3,
      "with rollback: most ways back without a new checkpoint; one more stops the run",
      recipe::at_least(1)};
  recipe::Key<recipe::Count> checksum_every{
      this, "checksum_every", 0,
      "after so many steps, and before each save, ranks that hold the same compare checksums of "
      "parameters and optimizer states, and the run ends where they differ; 0 = never",
      recipe::Rule{}};
  recipe::Key<recipe::Duration> hang_timeout{
      this, "hang_timeout", recipe::Duration{600},
      "how long a rank waits for another before it names it and ends the run; what one rank does "
      "for all, as preparing data, takes the time that it takes",
      recipe::at_least(1)};
  recipe::Key<recipe::Auto<recipe::Duration>> exit_margin{
      this,
      "exit_margin",
      {},
      "in a Slurm job: save and end so long before the end of its time (SLURM_JOB_END_TIME); auto "
      "= 10 s and twice the longest step and the longest save so far (before the first one: a "
      "rank's part of it at 100 MB/s)",
      recipe::at_least(0)};
  recipe::Key<recipe::Count> max_restarts_without_progress{
      this, "max_restarts_without_progress", 3,
      "in a Slurm job: most restarts in a row without a newer checkpoint; one more ends with exit "
      "code 93",
      recipe::Rule{}};

  bool goes_back() const {
    return on_non_finite() == OnBadStep::rollback || on_loss_spike() == OnBadStep::rollback;
  }
  void validate(recipe::Issues& issues) const override;
};

}  // namespace llmtrain::train
