// What happens in the loop when a step must not count.
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/train/bad_step.hpp"
#include "lib/train/named_checkpoint.hpp"
#include "lib/train/replica_check.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/trainer_loop.hpp"

namespace llmtrain::train {

// All ranks know the same loss and norm, so all come to the same end.
void Trainer::answer(BadStep bad) {
  if (gives_up_) return;
  const bool goes_back = bad.policy == OnBadStep::rollback;
  try {
    stop_or_go_on(options_, bad, state_);
    if (goes_back) bad.left_out_from = roll_back(bad);
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {
    try {
      note_incident(bad, "stopped");
    } catch (const StorageError& error) {
      log::error("{}", error.what());  // the other one is why the run ends
    }
    throw;
  }
  note_incident(bad, goes_back ? fmt::format("went back to step {}", state_.step) : "skipped");
}

void Trainer::note_incident(const BadStep& bad, std::string_view done) {
  if (peers_.is_first()) append_incident(directory_, incident_of(bad, done, stream_, corpus_));
}

// The run goes on as if it had resumed, but behind the samples of the bad step. Until it is saved
// again a new start comes to the same step by the same way.
std::uint64_t Trainer::roll_back(const BadStep& bad) {
  while (!in_flight_.empty()) {  // launched on what is given up
    engine_.settle_step();
    in_flight_.pop_front();
  }
  saver_.finish();
  status_.enter("going back");
  // One that somebody asked for, or a stop has left, takes the run no other way.
  const NewestCheckpoint newest =
      newest_valid(peers_, tiers_, [this](std::uint64_t step, Tier tier) {
        return options_.is_due_by_step(static_cast<std::int64_t>(step), tier);
      });
  constexpr std::string_view kNone = "{}; resilience asks for a way back, and no checkpoint {}";
  require<StorageError>(newest.step || !newest.is_unread, kNone, bad.text(),
                        "could be read: run again when the storage is well");
  require<CheckpointError>(newest.step || newest.newer_and_not_valid == 0, kNone, bad.text(),
                           "is valid (why stands above): restore one, and run again");
  require<NumericError>(newest.step.has_value(),
                        "{}; resilience asks for a way back, and there is no checkpoint yet: the "
                        "first comes after checkpoint.interval",
                        bad.text());
  const LoopState now = std::move(state_);
  const World::LongWait patience(peers_.world());
  state_ = load(newest);
  check_loaded_alike(engine_, peers_, state_.step);
  peers_.barrier("loading of a checkpoint");
  const std::uint64_t left_out_from = state_.next_sample;
  state_.next_sample = bad.end_sample;
  state_.skipped_steps = now.skipped_steps;
  state_.elapsed_seconds = now.elapsed_seconds;
  state_.rollbacks = now.rollbacks + 1;
  require<NumericError>(samples_needed() <= stream_.mixture().length(),
                        "{}; without samples {} to {} the sources of data.sources end before the "
                        "run does: allow more epochs of them (max_epochs)",
                        bad.text(), left_out_from, bad.end_sample - 1);
  // What is saved from here on must be newer than all of the way that is left.
  if (newest.local_is_unread) tiers_.stop_local_saves();
  set_newer_aside(peers_, tiers_, directory_, newest);
  if (newest.tier == Tier::durable) state_.durable_seconds = state_.elapsed_seconds;
  last_save_seconds_ = state_.elapsed_seconds;
  unrecorded_ = {};
  published_ = 0;
  went_back_ = true;
  status_.at_step(state_.step);
  status_.enter("training");
  open_output(state_.step);
  peers_.barrier("way back");
  message(fmt::format("{}: went back to step {}; samples {} to {} are left out", bad.text(),
                      state_.step, left_out_from, bad.end_sample - 1));
  leave_local(newest.tier);
  const bool is_durable = newest.tier == Tier::durable;  // else it was saved durably just now
  owes_durable_save_ = options_.saves_locally && !tiers_.saves_locally() && is_durable;
  return left_out_from;
}

void Trainer::leave_local(Tier loaded) {
  if (!tiers_.has_local() || tiers_.saves_locally()) return;
  if (loaded == Tier::local) {
    save(Tier::durable);
    saver_.finish();
  }
  tiers_.drop_local();
  if (peers_.is_first()) leave_local_checkpoints(tiers_);
}

}  // namespace llmtrain::train
