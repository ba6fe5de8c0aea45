#include "lib/train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/recipe/dump.hpp"
#include "lib/recipe/keys.hpp"
#include "lib/train/batch_source.hpp"
#include "lib/train/data_metrics.hpp"
#include "lib/train/device.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/generate.hpp"
#include "lib/train/launched_step.hpp"
#include "lib/train/loop_options.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_step.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/product_tuning.hpp"
#include "lib/train/report.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/run_output.hpp"
#include "lib/train/run_start.hpp"
#include "lib/train/signals.hpp"
#include "lib/train/throughput.hpp"

namespace llmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Everything a run holds; members are made in this order.
class Trainer {
 public:
  Trainer(const Recipe& recipe, const std::filesystem::path& file, World& world);
  ExitCode run();

 private:
  std::optional<std::int64_t> resume();
  /// The signal that asked some rank to stop, or 0. Collective, like all that follows.
  int stop_signal_of_any() const { return peers_.largest(stop_signal(), "signals"); }
  bool out_of_time() const { return time_over() >= 1; }
  /// Part of training.max_time that was over after the last step. What is due follows from the
  /// state alone: what a resumed run goes on with, what the records say, and what all ranks agree
  /// on.
  double time_over() const { return options_.time_over(state_.elapsed_seconds); }
  bool save_is_due(std::int64_t step) const {
    return options_.save_is_due(step, state_.elapsed_seconds - last_save_seconds_);
  }
  void launch_step();
  /// Steps that stay under way while the next one is prepared and launched.
  std::size_t steps_ahead() const;
  void settle_step();
  void settle_all();
  void record_step(const LaunchedStep& step, const engine::StepOutcome& outcome);
  /// False when the run should stop early.
  bool run_evaluation(bool final);
  bool out_of_patience() const { return options_.out_of_patience(state_.evals_without_progress); }
  void write_samples();
  void message(std::string_view line);
  void save();
  /// Shows the step's records that nobody has seen yet.
  void publish_records();

  const Recipe& recipe_;
  Peers peers_;
  LoopOptions options_;
  std::filesystem::path directory_;
  engine::BatchGeometry geometry_;
  RunPlan planned_;
  PlannedSteps planned_steps_;
  checkpoint::CheckpointStore store_;
  NewestCheckpoint newest_;
  Corpus corpus_;
  data::MixedStream stream_;
  std::int64_t total_steps_;
  optim::LrSchedule schedule_;
  RunDevice run_device_;
  Device& device_;
  std::string product_choices_;
  engine::Engine engine_;
  RunIdentity identity_;
  LoopState state_;  // of settled steps
  std::deque<LaunchedStep> in_flight_;
  std::size_t published_ = 0;  // of state_.records
  std::optional<std::int64_t> resumed_step_;
  std::optional<RunOutput> output_;  // of rank 0
  engine::StepBatch batch_;          // this rank's, of the step or of an evaluation
  Throughput unrecorded_;
  Clock::time_point last_settled_{};
  Clock::time_point start_ = Clock::now();
  double elapsed_before_ = 0;
  double last_save_seconds_ = 0;  // as state_.elapsed_seconds
  std::int64_t saved_step_ = -1;
  bool choices_said_ = false;  // after the first step
};

Trainer::Trainer(const Recipe& recipe, const std::filesystem::path& file, World& world)
    : recipe_(recipe),
      peers_(world, recipe::dump(recipe)),
      options_(recipe),
      directory_(output_dir(recipe, file)),
      geometry_(recipe.geometry()),
      planned_(plan_that_fits(recipe, geometry_, directory_)),
      planned_steps_(planned_.plan.step_trace),
      store_(peers_.first_then_others(
          [&] {
            const std::filesystem::path root = directory_ / "checkpoints";
            const auto options = store_options(recipe.checkpoint);
            return peers_.is_first() ? checkpoint::CheckpointStore::open_writer(root, options)
                                     : checkpoint::CheckpointStore::open_reader(root, options);
          },
          "opening of checkpoints")),
      newest_(newest_checkpoint(recipe, peers_, store_)),
      corpus_(peers_.first_then_others([&] { return open_corpus(recipe); }, "preparing of data")),
      stream_(corpus_.stream(recipe.run.seed())),
      total_steps_(options_.total_steps(geometry_, recipe.training, stream_.epoch_size())),
      schedule_(recipe.lr_scheduler,
                {total_steps_, [this](std::int64_t s) { return geometry_.tokens_before(s); }}),
      run_device_(recipe),
      device_(run_device_.device()),
      product_choices_(
          tune_products_in_turn(recipe, run_device_, planned_.plan, peers_,
                                newest_.step ? saved_product_choices(store_, *newest_.step) : "")),
      engine_(place_in_job(run_device_, recipe, peers_), recipe.engine_options()),
      identity_{.seed = recipe.run.seed(),
                .epoch_size = stream_.epoch_size(),
                .data_fingerprint = corpus_.fingerprint,
                .recipe = recipe::dump(recipe),
                .environment = environment(recipe.threads(), recipe.run.determinism()),
                .product_choices = product_choices_},
      resumed_step_(resume()) {
  check_prompts(recipe, *corpus_.tokenizer);
  const bool tensorboard = recipe.metrics.tensorboard();
  if (peers_.is_first()) {
    output_.emplace(RunOutputOptions{.directory = directory_,
                                     .resumed_step = resumed_step_,
                                     .tensorboard = tensorboard,
                                     .console = {.progress_bar = is_terminal(stdout),
                                                 .total_steps = total_steps_,
                                                 .mfu_formula = planned_.mfu_formula()}});
    write_start(directory_, recipe, planned_, identity_, corpus_);
  }
  // Arrays of the largest batch: no step and no evaluation takes memory for them.
  batch_.resize(geometry_.global_batch_size() / geometry_.data_ranks(), geometry_.seq_len());
  elapsed_before_ = last_save_seconds_ = state_.elapsed_seconds;
  log::info("determinism: {}", kernels::to_string(recipe.run.determinism()));
  log_launches(device_, planned_.plan);
  log_corpus(corpus_, geometry_.samples_before(total_steps_ + 1));
}

std::optional<std::int64_t> Trainer::resume() {
  const Resume mode = recipe_.checkpoint.resume();
  if (!newest_.step) {
    engine_.initialize();
    import_first_weights(recipe_, engine_.parameters());
    return std::nullopt;
  }
  recipe_.model.init_from.mark_read();  // the checkpoint has newer weights
  require<RecipeError>(mode != Resume::never,
                       "{} holds checkpoints and checkpoint.resume is never; choose another "
                       "run.output_dir",
                       directory_.string());
  state_ = load_checkpoint(store_, *newest_.step, engine_, identity_);
  saved_step_ = state_.step;
  log::info("resumed from step {}{}", state_.step,
            newest_.newer_and_not_valid == 0
                ? ""
                : fmt::format(" (newer and not valid: {})", newest_.newer_and_not_valid));
  log_changed_keys(store_, *newest_.step, recipe_);
  return state_.step;
}

ExitCode Trainer::run() {
  if (output_) output_->header();
  if (options_.eval_at_start && !resumed_step_) run_evaluation(false);
  publish_records();  // of step 0, or of the step that the run resumes from
  start_ = Clock::now();
  bool finished = state_.step >= total_steps_ || out_of_time() || out_of_patience();
  if (finished) {
    message(fmt::format("nothing left to train: step {} is saved, the run has {} steps{}{}",
                        state_.step, total_steps_,
                        out_of_time() ? ", training.max_time is over" : "",
                        out_of_patience() ? ", it ran out of eval.patience" : ""));
  }
  int signal = 0;
  while (!finished && (signal = stop_signal_of_any()) == 0) {
    try {
      launch_step();
    } catch (...) {
      // What came of the steps before is told before what is wrong with this one; but nobody who
      // has failed may wait for other ranks.
      if (peers_.world().place().size == 1) settle_all();
      throw;
    }
    while (in_flight_.size() > steps_ahead()) settle_step();
    if (!in_flight_.empty()) {
      publish_records();
      continue;
    }
    finished = state_.step >= total_steps_ || out_of_time();
    // What was reported is not lost by a kill: a step whose save is due is reported after it.
    const bool save_due = save_is_due(state_.step);
    if (!save_due) publish_records();
    if (!finished && options_.eval_is_due(state_.step)) finished = !run_evaluation(false);
    if (finished) run_evaluation(true);
    if (finished || save_due) save();
    publish_records();
  }
  settle_all();
  if (!finished) {
    if (saved_step_ != state_.step) save();
    message(
        fmt::format("stopped by signal {} after step {}; state saved, run again to "
                    "continue",
                    signal, state_.step));
    return ExitCode::preempted;
  }
  if (const std::int64_t steps = planned_steps_.count(); steps > 0) {
    message(fmt::format("{} steps took memory as planned, allocation by allocation", steps));
  }
  if (output_) write_report(directory_, directory_ / "report.html");
  message(fmt::format("report: {}", (directory_ / "report.html").string()));
  return ExitCode::done;
}

void Trainer::launch_step() {
  LaunchedStep step{.begin = Clock::now()};
  step.number = state_.step + static_cast<std::int64_t>(in_flight_.size()) + 1;
  step.first_sample = in_flight_.empty() ? state_.next_sample : in_flight_.back().end_sample();
  step.num_samples = geometry_.samples_in_step(step.number);
  step.shares = fill_share_of_batch(stream_, step.first_sample, step.num_samples,
                                    engine_.mesh().axis(Axis::dp), batch_);
  const double lr_factor = schedule_.factor(step.number, time_over());
  if (step.num_samples == geometry_.global_batch_size()) {
    planned_steps_.launch(engine_, device_, batch_, step.number, lr_factor);
  } else {  // smaller steps at the start of a ramp have no plan
    engine_.launch_step(batch_, step.number, lr_factor);
  }
  in_flight_.push_back(step);
}

// A device whose work runs behind the host has the next step in its queue before this one is done,
// unless something has to happen between the two: all ranks alike, so a signal, which they see at
// different times, is none of it.
std::size_t Trainer::steps_ahead() const {
  const std::int64_t last = in_flight_.empty() ? state_.step : in_flight_.back().number;
  const bool something_is_due =
      last >= total_steps_ || out_of_time() || options_.eval_is_due(last) || save_is_due(last);
  return device_.runs_behind() && !something_is_due ? 1 : 0;
}

void Trainer::settle_step() {
  publish_records();  // of the step before
  state_.records.clear();
  published_ = 0;
  const engine::StepOutcome outcome = engine_.settle_step();
  if (!std::exchange(choices_said_, true)) {
    for (const std::string& line : run_device_.choices()) message(line);
  }
  const LaunchedStep step = in_flight_.front();
  in_flight_.pop_front();
  const Clock::time_point begin = std::max(step.begin, last_settled_);
  last_settled_ = Clock::now();
  state_.step = step.number;
  state_.next_sample = step.end_sample();
  state_.trained_tokens += static_cast<std::uint64_t>(outcome.trained_tokens);
  state_.elapsed_seconds =
      peers_.of_first(elapsed_before_ + seconds_since(start_), "time of the run");
  count_non_finite(options_, step, outcome, state_);
  unrecorded_.add(step.num_samples * geometry_.seq_len(),
                  std::chrono::duration<double>(last_settled_ - begin).count());
  if (step.number == 1 || step.number % options_.metrics_interval == 0 ||
      step.number == total_steps_ || out_of_time() || !outcome.finite) {
    record_step(step, outcome);
  }
  const double steps_over = static_cast<double>(step.number) / static_cast<double>(total_steps_);
  if (output_) {
    output_->progress(std::max(steps_over, time_over()), fmt::format("step {}", step.number));
  }
}

void Trainer::settle_all() {
  while (!in_flight_.empty()) settle_step();
  publish_records();
}

void Trainer::record_step(const LaunchedStep& step, const engine::StepOutcome& outcome) {
  StepRecord record{.step = state_.step, .fields = {}};
  record.set(metric::kLoss, outcome.loss_sum / static_cast<double>(outcome.trained_tokens));
  if (engine_.options().z_loss_coef > 0) {
    record.set("train/z_loss", outcome.z_loss_sum / static_cast<double>(outcome.trained_tokens));
  }
  if (std::isfinite(outcome.loss_sum)) {  // else a norm means nothing
    record.set(metric::kGradNorm, outcome.update.grad_norm);
    record.set(metric::kLearningRate, outcome.update.lr);
  }
  record.set(metric::kTokens, static_cast<std::int64_t>(state_.trained_tokens));
  set_shares(record, step.shares);
  record.set("train/samples", static_cast<std::int64_t>(state_.next_sample));
  set_sources(record, corpus_, state_.next_sample);
  set_experts(record, engine_.options().model, outcome.routers,
              step.num_samples * geometry_.seq_len());
  record.set("train/skipped_steps", state_.skipped_steps);
  if (engine_.options().loss_scaling) {
    record.set("train/loss_scale", outcome.update.loss_scale);
  }
  set_memory(record, device_.ledger().peak(Phase::step));
  const double tokens_per_second = unrecorded_.tokens_per_second();
  const double step_seconds = unrecorded_.seconds_per_step();
  unrecorded_ = {};
  record.set(metric::kTokensPerSecond, tokens_per_second);
  if (const auto mfu = planned_.mfu(tokens_per_second)) record.set(metric::kMfu, *mfu);
  record.set(metric::kStepSeconds, step_seconds);
  record.set(metric::kElapsedSeconds, state_.elapsed_seconds);
  double eta = static_cast<double>(total_steps_ - state_.step) * step_seconds;
  if (options_.max_time) {
    eta = std::clamp(options_.max_time->seconds - state_.elapsed_seconds, 0.0, eta);
  }
  record.set(metric::kEtaSeconds, eta);
  state_.records.push_back(std::move(record));
}

void Trainer::publish_records() {
  for (; published_ < state_.records.size(); ++published_) {
    if (output_) output_->write(state_.records[published_]);
  }
  if (output_) output_->flush();
}

bool Trainer::run_evaluation(bool final) {
  std::optional<std::uint64_t> limit;
  if (!final && options_.eval_max_samples) limit = options_.eval_max_samples->value;
  const std::vector<EvalReport> reports = evaluate(engine_, corpus_.parts, limit, batch_);
  StepRecord record{.step = state_.step, .fields = {}};
  const double loss = set_evaluation(record, corpus_, reports);
  state_.records.push_back(std::move(record));
  write_samples();
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

void Trainer::write_samples() {
  // Where a rank has the whole model, the first does it alone; else all of them decode the same.
  const bool has_all = engine_.mesh().model().size() == 1 && !engine_.passes_together();
  if (!output_ && has_all) return;
  for (const std::string& prompt : options_.sample_prompts) {
    const std::string text =
        generate(engine_, *corpus_.tokenizer, prompt,
                 {.max_tokens = options_.sample_tokens, .seed = recipe_.run.seed()});
    if (output_) output_->add_sample({.step = state_.step, .prompt = prompt, .text = text});
  }
}

void Trainer::message(std::string_view line) {
  if (output_) output_->message(line);
}

void Trainer::save() {
  device_.ledger().enter(Phase::save);
  if (output_) output_->sync();
  save_checkpoint(store_, engine_, state_, identity_);
  saved_step_ = state_.step;
  last_save_seconds_ = state_.elapsed_seconds;
  publish_records();
  message(fmt::format("saved {}",
                      store_.directory_of(static_cast<std::uint64_t>(state_.step)).string()));
}

}  // namespace

ExitCode run(const Recipe& recipe, const std::filesystem::path& file, World& world) {
  install_signal_handlers();
  world.configure(TimeLimit(recipe.resilience.hang_timeout().seconds),
                  recipe.debug.check_collectives());
  Trainer trainer(recipe, file, world);
  const std::vector<std::string> unread = recipe::unread_keys(recipe);
  require(unread.empty(), "recipe keys that nothing read: {}", fmt::join(unread, ", "));
  return trainer.run();
}

}  // namespace llmtrain::train
