#include "lib/train/trainer.hpp"

#include <utility>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/recipe/dump.hpp"
#include "lib/recipe/keys.hpp"
#include "lib/train/checked_load.hpp"
#include "lib/train/exported_model.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/generate.hpp"
#include "lib/train/named_checkpoint.hpp"
#include "lib/train/product_tuning.hpp"
#include "lib/train/replica_check.hpp"
#include "lib/train/report.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/shared_memory.hpp"
#include "lib/train/starts.hpp"
#include "lib/train/step_record.hpp"
#include "lib/train/trainer_loop.hpp"

namespace llmtrain::train {

Trainer::Trainer(const Recipe& recipe, const std::filesystem::path& file, World& world,
                 StatusFile& status, StallWatch& watch)
    : recipe_(recipe),
      status_(status),
      peers_(world, fmt::format("{}directory: {}\n", recipe::dump(recipe),
                                output_dir(recipe, file).string())),
      options_(recipe),
      directory_(output_dir(recipe, file)),
      geometry_(recipe.geometry()),
      planned_([&] {
        RunPlan planned = plan_that_fits(recipe, geometry_, directory_);
        check_shared_memory(planned, recipe, peers_);
        check_host_memory(planned.plan, peers_);
        if (recipe.offload.uses_files(planned.plan.device)) {
          check_shared_disk(planned.plan, recipe.offload.directory(directory_), peers_);
        }
        return planned;
      }()),
      planned_steps_(planned_.plan.step_trace, planned_.plan.host_update_bytes()),
      tiers_([&] {
        if (world.place().size > 1) {
          watch.exchange(std::make_unique<SignsOfLife>(peers_, directory_));
        }
        return open_checkpoints(recipe, peers_, directory_,
                                [&] { take_directory(world.place(), directory_, status); });
      }()),
      newest_([&] {
        status.enter("checking checkpoints");
        return newest_checkpoint(recipe, peers_, tiers_);
      }()),
      requests_(peers_, directory_,
                [&] {
                  Deadline deadline(this_job(), recipe.resilience.exit_margin());
                  const plan::Plan& plan = planned_.plan;
                  const auto ranks = static_cast<std::uint64_t>(world.place().size);
                  deadline.expect_save(plan.checkpoint_bytes / ranks + plan.export_bytes,
                                       unix_time());
                  return deadline;
                }()),
      corpus_([&] {
        status.enter("preparing data");
        return peers_.first_then_others(
            [&] {
              if (peers_.is_first()) {
                if (!newest_.step && status.last_checkpoint()) {
                  keep_reports_of_lost_checkpoints(directory_, *status.last_checkpoint());
                }
                begin_start(world.place(), newest_, options_.max_restarts, recipe.data.cache_dir(),
                            directory_, status);
                requests_.stop_before_steps();
              }
              return open_corpus(recipe);
            },
            "preparing of data");
      }()),
      stream_(corpus_.stream(recipe.run.seed())),
      total_steps_(options_.total_steps(geometry_, recipe.training, stream_.epoch_size())),
      schedule_(recipe.lr_scheduler,
                {total_steps_, [this](std::int64_t s) { return geometry_.tokens_before(s); }}),
      run_device_(recipe),
      device_(run_device_.device()),
      product_choices_(tune_products_in_turn(
          recipe, run_device_, planned_.plan, peers_,
          newest_.step ? saved_product_choices(tiers_[newest_.tier], *newest_.step) : "")),
      engine_(place_in_job(run_device_, recipe, planned_.plan, peers_, directory_),
              recipe.engine_options()),
      saver_(
          tiers_, engine_, peers_, recipe.checkpoint.async(),
          [this](std::string_view line) { message(line); },
          [this](const Saver::Done& done) { note_saved(done); },
          [this](const StorageError& error) { note_lost_local(error); }),
      identity_(identity_of(recipe, corpus_, stream_.epoch_size(), product_choices_)),
      resumed_step_(resume()),
      profiler_(recipe.profiler, directory_) {
  const World::LongWait patience(peers_.world());  // rank 0's files may take long
  peers_.check_same_data(corpus_.fingerprint, corpus_.held_out_fingerprint);
  status_.length(total_steps_);
  write_environment(directory_, peers_);
  check_prompts(recipe, *corpus_.tokenizer);
  if (recipe.checkpoint.export_hf()) {
    tiers_[Tier::durable].export_with_saves(export_of_saves(recipe.model, *corpus_.tokenizer));
  }
  if (peers_.is_first()) leave_local_checkpoints(tiers_);
  if (newest_.is_named) {
    set_newer_aside(peers_, tiers_, directory_, newest_);
    leave_local(Tier::durable);
    if (peers_.is_first()) note_way_back(tiers_, *newest_.step);
  }
  owes_durable_save_ = options_.saves_locally && !tiers_.saves_locally();
  open_output(resumed_step_);
  if (peers_.is_first()) write_start(directory_, recipe, planned_, identity_, corpus_);
  // Arrays of the largest batch: no step and no evaluation takes memory for them.
  batch_.resize(geometry_.global_batch_size() / geometry_.data_ranks(), geometry_.seq_len());
  elapsed_before_ = last_save_seconds_ = state_.elapsed_seconds;
  log::info("determinism: {}", kernels::to_string(recipe.run.determinism()));
  log_launches(device_, planned_.plan);
  log_fp8(engine_, run_device_.place().multiplies_codes);
  log_offload(engine_);
  log_idle_keys(recipe, device_.kind());
  log_idle_offload(recipe, planned_.plan);
  warn_of_places(recipe, peers_);
  if (options_.checksum_every > 0 && peers_.world().place().size == 1) {
    log::info("resilience.checksum_every: nothing to compare, there is one rank");
  }
  log_corpus(corpus_, samples_needed());
  peers_.barrier("start of the run");
}

LoopState Trainer::load(const NewestCheckpoint& newest) {
  LoopState state = load_checkpoint(tiers_[newest.tier], *newest.step, engine_, identity_);
  durable_step_ = newest.tier == Tier::durable ? state.step : -1;
  return state;
}

LoopState Trainer::load_newest() {
  while (!newest_.is_checked) {
    CheckedLoad loaded = load_while_checking(tiers_[newest_.tier], *newest_.step, engine_,
                                             identity_, peers_.group());
    if (loaded.state) {
      durable_step_ = newest_.tier == Tier::durable ? loaded.state->step : -1;
      return std::move(*loaded.state);
    }
    newest_ = older_checkpoint(recipe_, peers_, tiers_, newest_, loaded.problems);
    if (!peers_.is_first()) continue;
    take_back_start(directory_);
    begin_start(peers_.world().place(), newest_, options_.max_restarts, recipe_.data.cache_dir(),
                directory_, status_);
  }
  return load(newest_);
}

std::optional<std::int64_t> Trainer::resume() {
  if (!newest_.step) {
    engine_.initialize();
    import_first_weights(recipe_, engine_.parameters());
    return std::nullopt;
  }
  recipe_.model.init_from.mark_read();  // the checkpoint has newer weights
  const World::LongWait patience(peers_.world());
  status_.enter("loading a checkpoint");
  const Clock::time_point begin = Clock::now();
  state_ = load_newest();
  check_loaded_alike(engine_, peers_, state_.step);
  status_.at_step(state_.step);
  peers_.barrier("loading of a checkpoint");
  log::info("every byte of the checkpoint was checked, and its tensors loaded, in {:.3f} s",
            seconds_since(begin));
  log::info("resumed from step {}{}{}", state_.step,
            newest_.tier == Tier::local ? ", saved in " + tiers_[Tier::local].root().string() : "",
            newest_.newer_and_not_valid == 0
                ? ""
                : fmt::format(" (newer and not valid: {})", newest_.newer_and_not_valid));
  log_changed_keys(tiers_[newest_.tier], *newest_.step, recipe_);
  return state_.step;
}

void Trainer::open_output(std::optional<std::int64_t> resumed_step) {
  const bool tensorboard = recipe_.metrics.tensorboard();  // read on all ranks
  // mpirun gives ranks a terminal of its own, whatever becomes of what they write there.
  const bool shows_bar = peers_.world().place().size == 1 && is_terminal(stdout);
  if (!peers_.is_first()) return;
  output_.reset();
  output_.emplace(RunOutputOptions{.directory = directory_,
                                   .resumed_step = resumed_step,
                                   .tensorboard = tensorboard,
                                   .console = {.progress_bar = shows_bar,
                                               .total_steps = total_steps_,
                                               .mfu_formula = planned_.mfu_formula()}});
}

ExitCode Trainer::run() {
  try {
    return train();
  } catch (const NumericError& error) {  // on all ranks; what was good until then is worth keeping
    saver_.finish_after(error);
    throw;
  } catch (const std::exception& error) {
    saver_.say_before_giving_up(error);
    throw;
  }
}

ExitCode Trainer::save_beginning() {
  require<RecipeError>(!resumed_step_,
                       "{} has checkpoints, from which `llmtrain run` goes on: name another "
                       "run.output_dir",
                       tiers_[newest_.tier].root().string());
  save(Tier::durable);
  saver_.finish();
  const std::string text = "the run begins with imported weights; `llmtrain run` goes on from them";
  message(text);
  status_.end("stopped", ExitCode::done, text);
  peers_.barrier("end of the import");
  return ExitCode::done;
}

namespace {

// Empty, or why there is no report: that takes nothing from a run that is done and saved.
std::string problem_of_report(const std::filesystem::path& directory) {
  const std::filesystem::path html = directory / "report.html";
  try {
    write_report(directory, html);
    return "";
  } catch (const std::exception& error) {
    return fmt::format("{} is not written: {}; `llmtrain report {}` writes it once that is mended",
                       html.string(), error.what(), directory.string());
  }
}

}  // namespace

ExitCode Trainer::train() {
  if (output_) output_->header();
  bool finished = state_.step >= total_steps_ || out_of_time() || out_of_patience();
  if (finished) {
    message(nothing_left(state_.step, total_steps_, out_of_time(), out_of_patience()));
  }
  if (evaluation_is_missing(options_, state_, finished)) run_evaluation(finished);
  publish_records();  // of step 0, or of the step that the run resumes from
  start_ = Clock::now();
  status_.enter("training");
  if (newest_.local_is_unread) {  // what the run passes over may be there again later
    tiers_.stop_local_saves();
    owes_durable_save_ = true;
    leave_local(newest_.tier);
  }
  while (!(finished && !request_.stops()) && !asked_to_stop()) {
    if (request_.kind == Request::Kind::save) {
      settle_all();
      save_durably_if_not_yet();
      publish_records();
      request_ = {};
    }
    if (!advance()) {
      if (evaluation_is_missing(options_, state_, false)) run_evaluation(false);
      publish_records();
      continue;
    }
    saver_.poll();
    if (!in_flight_.empty()) {
      publish_records();
      continue;
    }
    finished = state_.step >= total_steps_ || out_of_time();
    if (options_.checksum_is_due(state_.step)) check_replicas(engine_, peers_, state_.step);
    // What was reported is not lost by a kill: a step whose save is due is reported after it.
    std::optional<Tier> due = due_save(state_.step);
    if (due && !finished && is_left_out(*due)) due.reset();
    if (!due) publish_records();
    if (!finished && options_.eval_is_due(state_.step)) finished = !run_evaluation(false);
    if (finished) run_evaluation(true);
    if (request_.stops()) break;
    if (finished || due) save(finished ? Tier::durable : *due);
    publish_records();
  }
  settle_all();
  if (request_.stops()) {  // the state first, what is reported of it then: there may be little time
    const ExitCode code = stop();
    message(profiler_.finish(state_.step, peers_));
    return code;
  }
  publish_records();
  message(profiler_.finish(state_.step, peers_));
  save_durably_if_not_yet();  // of a run that had nothing left to do but was saved locally
  saver_.finish();
  if (output_) output_->sync();
  if (const std::int64_t steps = planned_steps_.count(); steps > 0) {
    message(fmt::format("{} steps took memory as planned, allocation by allocation", steps));
  }
  log_offload_traffic(engine_);
  require<StorageError>(!output_ || !output_->has_failed(),
                        "all steps are made and saved, but {} lacks the last of them; run again, "
                        "once that is mended, and it has them",
                        (directory_ / "metrics.jsonl").string());
  const std::string problem = output_ ? problem_of_report(directory_) : "";
  if (!problem.empty()) log::warning("{}", problem);
  if (peers_.is_first()) remove_local_checkpoints(tiers_);
  status_.end("done", ExitCode::done, problem);
  peers_.wait_for_first("end of the run");  // who does not come to it is named
  if (problem.empty()) message(fmt::format("report: {}", (directory_ / "report.html").string()));
  return ExitCode::done;
}

bool Trainer::asked_to_stop() {
  Request now = requests_.poll();
  if (now.kind > request_.kind) request_ = std::move(now);
  return request_.stops();
}

ExitCode Trainer::stop() {
  save_durably_if_not_yet();
  publish_records();
  saver_.finish();
  if (output_) output_->sync();
  const std::string text =
      fmt::format("stopped by {} after step {}; state saved, run again to continue", request_.text,
                  state_.step);
  message(text);
  // Who has asked for it by hand does not want a batch job to begin again.
  const bool by_hand = request_.kind == Request::Kind::control_stop;
  const bool by_disk = request_.kind == Request::Kind::output;
  const ExitCode code = by_hand   ? ExitCode::done
                        : by_disk ? ExitCode::storage
                                  : ExitCode::preempted;
  status_.end("stopped", code, text);
  return code;
}

namespace {

ExitCode with_trainer(const Recipe& recipe, const std::filesystem::path& file, World& world,
                      const std::function<ExitCode(Trainer&)>& body) {
  install_stop_handlers();
  world.configure(TimeLimit(recipe.resilience.hang_timeout().seconds),
                  recipe.debug.check_collectives());
  for (const recipe::Entry* key : recipe.slurm.entries()) key->mark_read();  // of `llmtrain slurm`
  StatusFile status;
  StallWatch watch(std::chrono::duration<double>(recipe.resilience.hang_timeout().seconds));
  return status.watch([&] {
    Trainer trainer(recipe, file, world, status, watch);
    const std::vector<std::string> unread = recipe::unread_keys(recipe);
    require(unread.empty(), "recipe keys that nothing read: {}", fmt::join(unread, ", "));
    return body(trainer);
  });
}

}  // namespace

ExitCode run(const Recipe& recipe, const std::filesystem::path& file, World& world) {
  return with_trainer(recipe, file, world, [](Trainer& trainer) { return trainer.run(); });
}

ExitCode begin_run(const Recipe& recipe, const std::filesystem::path& file, World& world) {
  return with_trainer(recipe, file, world,
                      [](Trainer& trainer) { return trainer.save_beginning(); });
}

}  // namespace llmtrain::train
