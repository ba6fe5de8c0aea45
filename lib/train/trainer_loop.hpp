#pragma once
/// The loop around the engine as a class: trainer.cpp sets it up, runs and ends it,
/// trainer_steps.cpp makes what happens in it, trainer_rollback.cpp what does when a step is bad.

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lib/data/mixed_stream.hpp"
#include "lib/engine/engine.hpp"
#include "lib/optim/lr_schedule.hpp"
#include "lib/train/bad_step.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/device.hpp"
#include "lib/train/launched_step.hpp"
#include "lib/train/loop_options.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_step.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/profiler.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/run_output.hpp"
#include "lib/train/run_requests.hpp"
#include "lib/train/run_start.hpp"
#include "lib/train/run_status.hpp"
#include "lib/train/saver.hpp"
#include "lib/train/stall_watch.hpp"
#include "lib/train/throughput.hpp"

namespace llmtrain::train {

/// Everything a run holds; members are made in this order.
class Trainer {
 public:
  Trainer(const Recipe& recipe, const std::filesystem::path& file, World& world, StatusFile& status,
          StallWatch& watch);
  ExitCode run();
  /// Saves durably what a run begins with, in place of the run.
  ExitCode save_beginning();

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  ExitCode train();
  std::optional<std::int64_t> resume();
  LoopState load(const NewestCheckpoint& newest);
  /// Loads newest_ while its bytes are checked. Where they are damaged, which is said, newest_ is
  /// an older one from then on, and what was loaded is overwritten.
  LoopState load_newest();
  /// Of the stream up to the end of the run, those that a way back left out among them.
  std::uint64_t samples_needed() const {
    return state_.next_sample + geometry_.samples_before(total_steps_ + 1) -
           geometry_.samples_before(state_.step + 1);
  }
  /// Whether somebody wants the run to end here. Collective, like all that follows.
  bool asked_to_stop();
  bool out_of_time() const { return time_over() >= 1; }
  /// Part of training.max_time that was over after the last step. What is due follows from the
  /// state alone: what a resumed run goes on with, what the records say, and what all ranks agree
  /// on.
  double time_over() const { return options_.time_over(state_.elapsed_seconds); }
  std::optional<Tier> due_by_recipe(std::int64_t step) const {
    return options_.due_save(step, state_.elapsed_seconds - state_.durable_seconds,
                             state_.elapsed_seconds - last_save_seconds_);
  }
  /// Where the fast storage has failed, durable saves take the place of local ones: of the next
  /// that is due, and of all where the recipe asks for no durable ones.
  std::optional<Tier> due_save(std::int64_t step) const {
    const std::optional<Tier> due = due_by_recipe(step);
    if (due != Tier::local || tiers_.saves_locally()) return due;
    const bool takes_its_place = owes_durable_save_ || !options_.save_interval;
    return takes_its_place ? std::optional(Tier::durable) : std::nullopt;
  }
  /// Launches the next step, and settles those before it that need not stay under way. False when
  /// one of these took the run back to a checkpoint.
  bool advance();
  void launch_step();
  /// Steps that stay under way while the next one is prepared and launched.
  std::size_t steps_ahead() const;
  void settle_step();
  void settle_all();
  /// On what a step came to and how long the run has taken.
  void agree(const LaunchedStep& step, const engine::StepOutcome& outcome);
  /// Does what the recipe says about it; may go back to a checkpoint.
  void answer(BadStep bad);
  /// The first sample that is left out.
  std::uint64_t roll_back(const BadStep& bad);
  /// Where fast storage has failed, and the run takes another way: it is never gone on from again.
  /// What was loaded from there is saved durably before.
  void leave_local(Tier loaded);
  void note_incident(const BadStep& bad, std::string_view done);
  void open_output(std::optional<std::int64_t> resumed_step);
  void record_step(const LaunchedStep& step, const engine::StepOutcome& outcome);
  /// False when the run should stop early. Gives up, with request_ set, when asked to stop.
  bool run_evaluation(bool final);
  ExitCode stop();
  bool out_of_patience() const { return options_.out_of_patience(state_.evals_without_progress); }
  void message(std::string_view line);
  void save(Tier tier);
  /// For what asks for a save that stays, if the last one of this step is none.
  void save_durably_if_not_yet() {
    if (durable_step_ != state_.step) save(Tier::durable);
  }
  /// Whether a save that is due is not made, and counts it: a local one, or one in its place, while
  /// a durable one is being written, which it would wait for. Where the run may go back it does
  /// wait, so that the step to which it goes does not depend on the disk.
  bool is_left_out(Tier tier);
  void note_saved(const Saver::Done& done);
  void note_lost_local(const StorageError& error);
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
  CheckpointTiers tiers_;
  NewestCheckpoint newest_;
  RunRequests requests_;  // who asks while data are prepared is heard at the first step
  Corpus corpus_;
  data::MixedStream stream_;
  std::int64_t total_steps_;
  optim::LrSchedule schedule_;
  RunDevice run_device_;
  Device& device_;
  std::string product_choices_;
  engine::Engine engine_;
  Saver saver_;
  RunIdentity identity_;
  LoopState state_;  // of settled steps
  std::deque<LaunchedStep> in_flight_;
  std::size_t published_ = 0;  // of state_.records
  bool went_back_ = false;     // since the last advance()
  bool gives_up_ = false;  // a launch has failed: steps are settled, and nothing follows from them
  std::int64_t durable_step_ = -1;  // that was saved, or loaded, last
  std::optional<std::int64_t> resumed_step_;
  std::optional<RunOutput> output_;  // of rank 0
  engine::StepBatch batch_;          // this rank's, of the step or of an evaluation
  Throughput unrecorded_;
  Clock::time_point last_settled_{};
  Clock::time_point start_ = Clock::now();
  double elapsed_before_ = 0;
  double last_save_seconds_ = 0;    // as state_.elapsed_seconds; of either kind
  std::int64_t left_out_ = 0;       // saves, since the one under way began
  bool owes_durable_save_ = false;  // since there are no local ones any more
  bool choices_said_ = false;       // after the first step
  Request request_;                 // that has not been met
  Profiler profiler_;
};

}  // namespace llmtrain::train
