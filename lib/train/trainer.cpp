#include "lib/train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
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
#include "lib/train/run_requests.hpp"
#include "lib/train/run_start.hpp"
#include "lib/train/sampling.hpp"
#include "lib/train/step_record.hpp"
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
  Trainer(const Recipe& recipe, const std::filesystem::path& file, World& world,
          StatusFile& status);
  ExitCode run();

 private:
  std::optional<std::int64_t> resume();
  /// Whether somebody wants the run to end here. Collective, like all that follows.
  bool asked_to_stop();
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
  /// False when the run should stop early. Gives up, with request_ set, when asked to stop.
  bool run_evaluation(bool final);
  ExitCode stop();
  bool out_of_patience() const { return options_.out_of_patience(state_.evals_without_progress); }
  void message(std::string_view line);
  void save();
  /// Shows the step's records that nobody has seen yet.
  void publish_records();

  const Recipe& recipe_;
  StatusFile& status_;
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
  RunRequests requests_;
  Request request_;  // that has not been met
};

Trainer::Trainer(const Recipe& recipe, const std::filesystem::path& file, World& world,
                 StatusFile& status)
    : recipe_(recipe),
      status_(status),
      peers_(world, recipe::dump(recipe)),
      options_(recipe),
      directory_(output_dir(recipe, file)),
      geometry_(recipe.geometry()),
      planned_(plan_that_fits(recipe, geometry_, directory_)),
      planned_steps_(planned_.plan.step_trace),
      store_(open_store(recipe, peers_, directory_)),
      newest_(newest_checkpoint(recipe, peers_, store_)),
      corpus_(peers_.first_then_others(
          [&] {
            if (peers_.is_first()) begin_start(recipe, world.place(), newest_, directory_, status);
            open_rank_log(directory_, world.place());
            return open_corpus(recipe);
          },
          "preparing of data")),
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
      identity_(identity_of(recipe, corpus_, stream_.epoch_size(), product_choices_)),
      resumed_step_(resume()),
      requests_(peers_, directory_, Deadline(this_job(), recipe.resilience.exit_margin())) {
  status_.length(total_steps_);
  write_environment(directory_, peers_);
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
  bool finished = state_.step >= total_steps_ || out_of_time() || out_of_patience();
  if (finished) {
    message(nothing_left(state_.step, total_steps_, out_of_time(), out_of_patience()));
  }
  if (evaluation_is_missing(options_, state_, finished)) run_evaluation(finished);
  publish_records();  // of step 0, or of the step that the run resumes from
  start_ = Clock::now();
  status_.enter("training");
  while (!(finished && !request_.stops()) && !asked_to_stop()) {
    if (request_.kind == Request::Kind::save) {
      settle_all();
      if (saved_step_ != state_.step) save();
      request_ = {};
    }
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
    if ((finished || save_due) && !request_.stops()) save();
    publish_records();
  }
  settle_all();
  if (request_.stops()) return stop();
  if (const std::int64_t steps = planned_steps_.count(); steps > 0) {
    message(fmt::format("{} steps took memory as planned, allocation by allocation", steps));
  }
  status_.end("done", ExitCode::done, "");
  if (output_) write_report(directory_, directory_ / "report.html");
  message(fmt::format("report: {}", (directory_ / "report.html").string()));
  return ExitCode::done;
}

bool Trainer::asked_to_stop() {
  Request now = requests_.poll();
  if (now.kind > request_.kind) request_ = std::move(now);
  return request_.stops();
}

ExitCode Trainer::stop() {
  if (saved_step_ != state_.step) save();
  const std::string text =
      fmt::format("stopped by {} after step {}; state saved, run again to continue", request_.text,
                  state_.step);
  message(text);
  // Who has asked for it by hand does not want a batch job to begin again.
  const bool by_hand = request_.kind == Request::Kind::control_stop;
  const ExitCode code = by_hand ? ExitCode::done : ExitCode::preempted;
  status_.end("stopped", code, text);
  return code;
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
  requests_.deadline().note_step(std::chrono::duration<double>(last_settled_ - begin).count());
  status_.at_step(state_.step);
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
  state_.records.push_back(record_of_step({state_, step, outcome, corpus_, engine_.options(),
                                           device_.ledger().peak(Phase::step), unrecorded_,
                                           planned_, options_, total_steps_}));
  unrecorded_ = {};
}

void Trainer::publish_records() {
  for (; published_ < state_.records.size(); ++published_) {
    if (output_) output_->write(state_.records[published_]);
    status_.add(state_.records[published_]);
  }
  if (output_) output_->flush();
}

bool Trainer::run_evaluation(bool final) {
  status_.enter("evaluating");
  std::optional<std::uint64_t> limit;
  if (!final && options_.eval_max_samples) limit = options_.eval_max_samples->value;
  const auto reports =
      evaluate(engine_, corpus_.parts, limit, batch_, [this] { return asked_to_stop(); });
  status_.enter("training");
  if (!reports) return true;
  StepRecord record{.step = state_.step, .fields = {}};
  const double loss = set_evaluation(record, corpus_, *reports);
  state_.records.push_back(std::move(record));
  write_samples(engine_, *corpus_.tokenizer, options_, recipe_.run.seed(), state_.step,
                output_ ? &*output_ : nullptr);
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
  log::note(line);
  if (output_) output_->message(line);
}

void Trainer::save() {
  status_.enter("saving");
  const Clock::time_point begin = Clock::now();
  device_.ledger().enter(Phase::save);
  if (output_) output_->sync();
  save_checkpoint(store_, engine_, state_, identity_);
  saved_step_ = state_.step;
  last_save_seconds_ = state_.elapsed_seconds;
  requests_.deadline().note_save(seconds_since(begin));
  status_.saved(state_.step);
  status_.enter("training");
  publish_records();
  message(fmt::format("saved {}",
                      store_.directory_of(static_cast<std::uint64_t>(state_.step)).string()));
}

}  // namespace

ExitCode run(const Recipe& recipe, const std::filesystem::path& file, World& world) {
  install_stop_handlers();
  world.configure(TimeLimit(recipe.resilience.hang_timeout().seconds),
                  recipe.debug.check_collectives());
  for (const recipe::Entry* key : recipe.slurm.entries()) key->mark_read();  // of `llmtrain slurm`
  StatusFile status;
  return status.watch([&] {
    Trainer trainer(recipe, file, world, status);
    const std::vector<std::string> unread = recipe::unread_keys(recipe);
    require(unread.empty(), "recipe keys that nothing read: {}", fmt::join(unread, ", "));
    return trainer.run();
  });
}

}  // namespace llmtrain::train
