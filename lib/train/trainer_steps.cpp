// What happens in the loop: steps, evaluations, saves, and what is said of them.
#include <algorithm>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/base/units.hpp"
#include "lib/train/batch_source.hpp"
#include "lib/train/data_metrics.hpp"
#include "lib/train/replica_check.hpp"
#include "lib/train/sampling.hpp"
#include "lib/train/step_record.hpp"
#include "lib/train/trainer.hpp"
#include "lib/train/trainer_loop.hpp"

namespace llmtrain::train {

bool Trainer::advance() {
  went_back_ = false;
  const std::int64_t number = state_.step + static_cast<std::int64_t>(in_flight_.size()) + 1;
  message(profiler_.before_step(number, peers_));
  const trace::Scope phase(trace::Kind::phase, [&] { return fmt::format("step {}", number); });
  try {
    launch_step();
  } catch (...) {
    // What came of the steps before is told before what is wrong with this one; but nobody who has
    // failed may wait for other ranks.
    gives_up_ = true;
    if (peers_.world().place().size == 1) {
      settle_all();
      publish_records();
    }
    throw;
  }
  while (in_flight_.size() > steps_ahead()) settle_step();
  return !went_back_;
}

void Trainer::launch_step() {
  LaunchedStep step{.begin = Clock::now()};
  step.number = state_.step + static_cast<std::int64_t>(in_flight_.size()) + 1;
  step.first_sample = in_flight_.empty() ? state_.next_sample : in_flight_.back().end_sample();
  step.num_samples = geometry_.samples_in_step(step.number);
  {
    const trace::Scope span(trace::Kind::io, "samples");
    step.shares = fill_share_of_batch(stream_, step.first_sample, step.num_samples,
                                      engine_.mesh().axis(Axis::dp), batch_);
  }
  step.loss_limit = loss_limit_of(options_, state_, step.number);
  const engine::StepOptions how{.lr_factor = schedule_.factor(step.number, time_over()),
                                .loss_limit = step.loss_limit,
                                .diagnose = options_.diagnosis_is_due(step.number)};
  if (step.num_samples == geometry_.global_batch_size()) {
    planned_steps_.launch(engine_, device_, batch_, step.number, how);
  } else {  // smaller steps at the start of a ramp have no plan
    engine_.launch_step(batch_, step.number, how);
  }
  in_flight_.push_back(step);
}

// A device whose work runs behind the host has the next step in its queue before this one is done,
// unless something has to happen between the two: all ranks alike, so a signal, which they see at
// different times, is none of it.
std::size_t Trainer::steps_ahead() const {
  const std::int64_t last = in_flight_.empty() ? state_.step : in_flight_.back().number;
  const bool something_is_due = last >= total_steps_ || out_of_time() ||
                                options_.eval_is_due(last) || due_save(last) ||
                                options_.checksum_is_due(last) || options_.diagnosis_is_due(last) ||
                                options_.diagnosis_is_due(last + 1);
  return device_.runs_behind() && !something_is_due ? 1 : 0;
}

void Trainer::settle_step() {
  publish_records();  // of the step before
  state_.records.erase(state_.records.begin(),
                       state_.records.begin() + static_cast<std::ptrdiff_t>(published_));
  published_ = 0;
  const engine::StepOutcome outcome = [&] {
    const trace::Scope span(trace::Kind::wait, "end of a step");
    return engine_.settle_step();
  }();
  if (!std::exchange(choices_said_, true)) {
    for (const std::string& line : run_device_.choices()) message(line);
  }
  const LaunchedStep step = in_flight_.front();
  in_flight_.pop_front();
  const Clock::time_point begin = std::max(step.begin, last_settled_);
  last_settled_ = Clock::now();
  state_.step = step.number;
  requests_.deadline().note_step(std::chrono::duration<double>(last_settled_ - begin).count());
  status_.at_step(state_.step);
  state_.next_sample = step.end_sample();
  state_.trained_tokens += static_cast<std::uint64_t>(outcome.trained_tokens);
  agree(step, outcome);
  std::optional<BadStep> bad = judge_step(options_, step, outcome, state_);
  if (bad && !bad->spike && in_flight_.empty()) {
    bad->where = where_not_finite(engine_, peers_);
    if (!bad->where.empty() && peers_.is_first()) {
      log::warning("step {}: not finite: {}", bad->number, bad->where);
    }
  }
  if (bad && (gives_up_ || bad->policy != OnBadStep::skip)) return answer(*bad);
  unrecorded_.add(step.num_samples * geometry_.seq_len(),
                  std::chrono::duration<double>(last_settled_ - begin).count());
  if (step.number == 1 || step.number % options_.metrics_interval == 0 ||
      step.number == total_steps_ || out_of_time() || !outcome.update.applied ||
      outcome.diagnostics) {
    record_step(step, outcome);
  }
  const double steps_over = static_cast<double>(step.number) / static_cast<double>(total_steps_);
  if (output_) {
    output_->progress(std::max(steps_over, time_over()), fmt::format("step {}", step.number));
  }
  if (bad) answer(*bad);
}

void Trainer::agree(const LaunchedStep& step, const engine::StepOutcome& outcome) {
  const StepSummary mine{.elapsed_seconds = elapsed_before_ + seconds_since(start_),
                         .loss = outcome.loss_sum,
                         .grad_norm = outcome.update.grad_norm,
                         .applied = outcome.update.applied ? 1.0 : 0.0};
  const std::vector<StepSummary> all = peers_.of_all(mine, "outcome of a step");
  check_same_outcome(all, peers_, step.number);
  state_.elapsed_seconds = all.front().elapsed_seconds;
}

void Trainer::settle_all() {
  while (!in_flight_.empty()) settle_step();
}

void Trainer::record_step(const LaunchedStep& step, const engine::StepOutcome& outcome) {
  state_.records.push_back(record_of_step({state_, step, outcome, corpus_, engine_.options(),
                                           device_.ledger().peak(Phase::step), unrecorded_,
                                           planned_, options_, total_steps_}));
  unrecorded_ = {};
}

void Trainer::publish_records() {
  for (; published_ < state_.records.size(); ++published_) {
    if (output_ && !output_->write(state_.records[published_])) break;
    status_.add(state_.records[published_]);
  }
  if (output_) output_->flush();
  if (output_ && output_->has_failed()) requests_.stop_for_output();
}

bool Trainer::run_evaluation(bool final) {
  const trace::Scope span(trace::Kind::action, "evaluation");
  status_.enter("evaluating");
  std::optional<std::uint64_t> limit;
  if (!final && options_.eval_max_samples) limit = options_.eval_max_samples->value;
  const auto reports =
      evaluate(engine_, corpus_.parts, limit, batch_, [this] { return asked_to_stop(); });
  const bool is_whole =
      reports && write_samples(engine_, peers_, *corpus_.tokenizer, options_, recipe_.run.seed(),
                               state_.step, output_ ? &*output_ : nullptr,
                               {.of_all = [this] { return asked_to_stop(); },
                                .here = [this] { return requests_.hears_stop(); }});
  status_.enter("training");
  if (!is_whole) {    // asked to stop: the run that goes on does it again
    asked_to_stop();  // one rank alone may have heard it
    return true;
  }
  StepRecord record{.step = state_.step, .fields = {}};
  const double loss = set_evaluation(record, corpus_, *reports);
  state_.records.push_back(std::move(record));
  if (final) return true;
  if (state_.best_eval_loss == 0 || loss < state_.best_eval_loss) {
    state_.best_eval_loss = loss;
    state_.evals_without_progress = 0;
    return true;
  }
  ++state_.evals_without_progress;
  if (!out_of_patience()) return true;
  message(fmt::format("stopping early: {} evaluations without a lower loss",
                      state_.evals_without_progress));
  return false;
}

void Trainer::message(std::string_view line) {
  if (line.empty()) return;
  log::note(line);
  if (output_) output_->message(line);
}

bool Trainer::is_left_out(Tier tier) {
  const bool is_local = tier == Tier::local || due_by_recipe(state_.step) == Tier::local;
  if (!is_local || !saver_.is_under_way(Tier::durable)) return false;
  if (options_.goes_back()) return false;
  ++left_out_;
  last_save_seconds_ = state_.elapsed_seconds;
  return true;
}

void Trainer::save(Tier tier) {
  const trace::Scope span(trace::Kind::io, "checkpoint");
  status_.enter("saving");
  if (options_.checksum_every > 0 && !options_.checksum_is_due(state_.step)) {
    check_replicas(engine_, peers_, state_.step);
  }
  device_.ledger().enter(Phase::save);
  if (output_) output_->sync();
  if (tier == Tier::durable) {
    state_.durable_seconds = state_.elapsed_seconds;
    durable_step_ = state_.step;
  }
  saver_.save(tier, state_, identity_);
  if (tier == Tier::durable) {
    owes_durable_save_ = false;
  } else if (owes_durable_save_) {
    return save(Tier::durable);
  }
  state_.rollbacks = 0;
  last_save_seconds_ = state_.elapsed_seconds;
  status_.enter("training");
  publish_records();
  saver_.poll();
}

void Trainer::note_lost_local(const StorageError& error) {
  owes_durable_save_ = true;
  if (!peers_.is_first()) return;
  log::warning("{}", without_local_saves(error.what(), tiers_[Tier::durable].root()));
}

void Trainer::note_saved(const Saver::Done& done) {
  requests_.deadline().note_save(done.tier, done.seconds - done.rested);
  status_.saved(done.step);
  const std::int64_t left_out = std::exchange(left_out_, 0);
  message(fmt::format(
      "saved {} ({} in {:.3f} s, of which no step was made for {:.3f} s; written in {:.3f} s{})",
      tiers_[done.tier].directory_of(static_cast<std::uint64_t>(done.step)).string(),
      format_bytes(done.bytes), done.seconds, done.waited, done.written,
      left_out == 0 ? "" : fmt::format("; local saves left out meanwhile: {}", left_out)));
}

}  // namespace llmtrain::train
