#include "lib/train/named_checkpoint.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

#include "lib/base/ending.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/job.hpp"
#include "lib/train/local_checkpoints.hpp"

namespace llmtrain::train {

namespace fs = std::filesystem;
using checkpoint::CheckpointStore;

namespace {

/// The file's content behind that; empty without a job.
std::string note_of(std::uint64_t step) {
  const std::string& job = this_job().id;
  return job.empty() ? "" : fmt::format("step {} in job {}\n", step, job);
}

bool has_newer(const CheckpointStore& store, std::uint64_t step) {
  const std::vector<std::uint64_t> steps = store.list();
  return !steps.empty() && steps.back() > step;
}

void keep_copy(const fs::path& file, std::string_view mark) {
  if (!fs::exists(file)) return;
  const fs::path copy = file.string() + std::string(mark);
  std::error_code error;
  fs::copy_file(file, copy, error);
  require<StorageError>(!error, "{}: cannot be copied to {}: {}", file.string(), copy.string(),
                        error.message());
  File::open_append(copy).sync();
}

void keep_reports(const fs::path& run, std::string_view mark) {
  for (const char* file : {"metrics.jsonl", "samples.jsonl"}) keep_copy(run / file, mark);
  sync_directory(run);
}

}  // namespace

std::string other_steps_in(const CheckpointStore& store, std::uint64_t step) {
  std::vector<std::uint64_t> steps = store.list();
  if (steps.empty()) return "there is none";
  std::erase(steps, step);
  if (steps.empty()) return "there is no other";
  return fmt::format("there {} {}", steps.size() == 1 ? "is step" : "are steps",
                     fmt::join(steps, ", "));
}

bool goes_back_to(const Resume& resume, const CheckpointTiers& tiers) {
  if (resume.mode != Resume::Mode::step) return false;
  const fs::path note = tiers[Tier::durable].root() / checkpoint::kWentBackName;
  const std::string mine = note_of(resume.step);
  if (mine.empty() || !fs::exists(note) || read_file(note) != mine) return true;
  log::info(
      "checkpoint.resume: this Slurm job has gone back to step {} before, and goes on from its "
      "newest checkpoint now",
      resume.step);
  return false;
}

NewestCheckpoint named_checkpoint(const Peers& peers, const CheckpointTiers& tiers,
                                  std::uint64_t step) {
  const World::LongWait patience(peers.world());  // hashing takes the time that it takes
  const CheckpointStore& store = tiers[Tier::durable];
  if (peers.is_first()) {
    const std::vector<std::uint64_t> steps = store.list();
    require<CheckpointError>(std::ranges::find(steps, step) != steps.end(),
                             "checkpoint.resume: {} has no checkpoint of step {}; {}",
                             store.root().string(), step, other_steps_in(store, step));
  }
  const auto problems = store.verify(step, checkpoint::VerifyLevel::hash, peers.group());
  checkpoint::require_rights(store.directory_of(step), problems);
  require<CheckpointError>(
      problems.empty(), "checkpoint.resume: the checkpoint of step {} in {} is not valid: {}; {}",
      step, store.root().string(), checkpoint::to_string(problems), other_steps_in(store, step));
  return {.step = step, .is_checked = true, .is_named = true};
}

void keep_reports_of_lost_checkpoints(const fs::path& run, std::int64_t step) {
  const std::string mark = std::string(checkpoint::kAsideMark) + checkpoint::make_nonce();
  keep_reports(run, mark);
  log::warning(
      "{} tells of a checkpoint of step {}, and {} has none: the run begins. Metrics and samples "
      "of "
      "before have names that end in {}. Where checkpoints are elsewhere (a disk that is not "
      "mounted), stop this run and bring them back",
      (run / "status.json").string(), step, (run / "checkpoints").string(), mark);
}

namespace {

/// False, which is said, where storage fails what is done with local checkpoints.
bool unless_storage_fails(const CheckpointTiers& tiers, const std::function<void()>& what) {
  try {
    what();
    return true;
  } catch (const std::exception& error) {
    if (ending_of(error).code != ExitCode::storage) throw;
    log::warning("{}", without_local_saves(ending_of(error).text, tiers[Tier::durable].root()));
    return false;
  }
}

/// Whether local checkpoints may be saved and gone on from.
bool set_aside_on_first(CheckpointTiers& tiers, const fs::path& run, const NewestCheckpoint& at) {
  const std::string mark = std::string(checkpoint::kAsideMark) + checkpoint::make_nonce();
  const std::uint64_t step = *at.step;
  bool local = false;
  bool keeps_local = tiers.saves_locally() || !tiers.has_local();  // else nobody asks what is there
  if (tiers.saves_locally()) {
    keeps_local = unless_storage_fails(tiers, [&] { local = has_newer(tiers[Tier::local], step); });
  }
  if (keeps_local && !local && !has_newer(tiers[Tier::durable], step)) return true;
  keep_reports(run, mark);
  if (local) {
    keeps_local = unless_storage_fails(tiers, [&] { tiers[Tier::local].set_aside(step, mark); });
  }
  if (!keeps_local && at.tier == Tier::durable) {
    leave_recorded_checkpoints(tiers[Tier::durable].root());
  }
  tiers[Tier::durable].set_aside(step, mark);
  log::warning(
      "went back to step {}: newer checkpoints, metrics and samples have names that end in {}; "
      "they take room until they are deleted",
      step, mark);
  return keeps_local;
}

}  // namespace

void set_newer_aside(const Peers& peers, CheckpointTiers& tiers, const fs::path& run,
                     const NewestCheckpoint& at) {
  const bool keeps_local = !peers.is_first() || set_aside_on_first(tiers, run, at);
  if (!tiers.saves_locally()) return;
  if (peers.of_first(keeps_local ? 1 : 0, "local checkpoints") == 0) tiers.stop_local_saves();
}

void note_way_back(const CheckpointTiers& tiers, std::uint64_t step) {
  const std::string note = note_of(step);
  if (note.empty()) return;
  write_file_atomic(tiers[Tier::durable].root() / checkpoint::kWentBackName, note);
}

}  // namespace llmtrain::train
