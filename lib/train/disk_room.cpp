#include "lib/train/disk_room.hpp"

#include <algorithm>

#include "lib/base/ending.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/local_checkpoints.hpp"

namespace llmtrain::train {

namespace fs = std::filesystem;

namespace {

/// Of a run that `goes_on` the disk is too full, not the recipe wrong.
void check_next(std::uint64_t bytes, std::uint64_t free, const fs::path& directory,
                std::string_view key, bool goes_on, std::string_view hint) {
  const std::uint64_t needed = bytes + bytes / 5;
  if (needed <= free) return;
  const std::string problem = fmt::format(
      "a checkpoint needs {} of disk ({} times the safety factor of 1.2), but {} has {} free",
      format_bytes(needed), format_bytes(bytes), directory.string(), format_bytes(free));
  require<StorageError>(!goes_on,
                        "{}; the run's checkpoints are intact: free space there, and run again{}",
                        problem, hint);
  fail<DoesNotFitError>("{}; choose another {}", problem, key);
}

/// Whether somebody may delete checkpoints that the next save would delete, if there were room for
/// it.
std::string surplus_of(const checkpoint::CheckpointStore& store, const CheckpointSection& section) {
  std::vector<std::uint64_t> steps = store.list();
  if (!section.keep_latest()) return "";
  steps.resize(steps.size() - std::min<std::size_t>(steps.size(), section.keep_latest()->value));
  const std::uint64_t for_good = section.keep_every();
  std::erase_if(steps, [&](std::uint64_t step) { return for_good > 0 && step % for_good == 0; });
  if (steps.empty()) return "";
  return fmt::format(
      "; checkpoint.keep_latest keeps none of the {} oldest, such as {}: delete them, if `llmtrain "
      "ckpt verify` finds two newer ones valid",
      steps.size(), store.directory_of(steps.front()).string());
}

/// What will not fit is told of before it happens.
void warn_if_it_gets_full(std::uint64_t most, std::uint64_t there, std::uint64_t bytes,
                          std::uint64_t free, const fs::path& directory, std::string_view remedy) {
  const std::uint64_t more = most > there ? most - there : 0;
  if (more * bytes <= free) return;
  log::warning(
      "{} has {} free, and the run will have up to {} checkpoints of {} at a time there: {}",
      directory.string(), format_bytes(free), most, format_bytes(bytes), remedy);
}

/// Of fast storage: bytes that are free, and checkpoints that are there.
struct LocalRoom {
  std::uint64_t free = 0, there = 0;
};

/// Nothing where it cannot be looked at, which ends no run that has durable checkpoints: its
/// opening says so.
std::optional<LocalRoom> local_room(const fs::path& local, const fs::path& durable,
                                    bool has_durable) {
  try {
    LocalRoom room{.free = free_disk_bytes(local)};
    if (const auto recorded = recorded_local_checkpoints(durable, local)) {
      const auto store = checkpoint::CheckpointStore::open_reader(*recorded);
      room.free += store.leftover_bytes();
      room.there = store.list().size();
    }
    return room;
  } catch (const std::exception& error) {
    if (!has_durable || ending_of(error).code != ExitCode::storage) throw;
    return std::nullopt;
  }
}

/// A run that goes on needs no fast storage: what fails there is said, and it saves durably.
void check_local_room(const plan::Plan& plan, const LocalCheckpointSection& section,
                      const LocalRoom& room, bool goes_on, const fs::path& of_run) {
  const fs::path directory = *section.directory();
  constexpr std::string_view kKey = "checkpoint.local.directory";
  if (!goes_on) check_next(plan.checkpoint_bytes, room.free, directory, kKey, false, "");
  warn_if_it_gets_full(section.keep_latest().value + 1, room.there, plan.checkpoint_bytes,
                       room.free, directory,
                       fmt::format("when it is full the run saves in {} alone; free space, keep "
                                   "fewer (checkpoint.local.keep_latest), or choose another {}",
                                   of_run.string(), kKey));
}

}  // namespace

std::optional<std::uint64_t> most_checkpoints(const CheckpointSection& section,
                                              std::optional<std::int64_t> total_steps) {
  const auto multiples = [&](std::uint64_t of) {
    return static_cast<std::uint64_t>(*total_steps) / of;
  };
  const std::uint64_t keep_every = section.keep_every();
  if (keep_every > 0 && !total_steps) return std::nullopt;
  const std::uint64_t for_good = keep_every > 0 ? multiples(keep_every) : 0;
  std::optional<std::uint64_t> saves;  // and the last step's
  const auto& interval = section.interval();
  if (!interval) {
    saves = 1 + for_good;
  } else if (total_steps && interval->unit == recipe::Interval::Unit::steps) {
    saves = multiples(interval->count) + 1 + for_good;
  }
  if (!section.keep_latest()) return saves;
  const std::uint64_t kept = section.keep_latest()->value + 1 + for_good;
  return std::min(kept, saves.value_or(kept));
}

void check_disk_room(const plan::Plan& plan, const CheckpointSection& section,
                     std::optional<std::int64_t> total_steps, const fs::path& directory) {
  // What a crash has left there is cleared when the run has the directory's lock.
  const auto durable = checkpoint::CheckpointStore::open_reader(directory / "checkpoints");
  const std::uint64_t free = free_disk_bytes(directory) + durable.leftover_bytes();
  const auto there = static_cast<std::uint64_t>(durable.list().size());
  const auto& local = section.local.directory();
  std::optional<LocalRoom> room;
  if (local) room = local_room(*local, durable.root(), there > 0);
  const bool goes_on = there > 0 || (room && room->there > 0);
  check_next(plan.durable_bytes(), free, directory, "run.output_dir", goes_on,
             surplus_of(durable, section));
  if (room) check_local_room(plan, section.local, *room, goes_on, directory);
  warn_if_it_gets_full(most_checkpoints(section, total_steps).value_or(0), there,
                       plan.durable_bytes(), free, directory,
                       "it ends when the disk is full; free space, keep fewer "
                       "(checkpoint.keep_latest, keep_every), or choose another run.output_dir");
}

void check_offload_room(const plan::Plan& plan, const fs::path& directory) {
  const std::uint64_t in_files = plan.offloaded_bytes + plan.activation_file_bytes;
  if (in_files == 0) return;
  const std::uint64_t free = free_disk_bytes(directory);
  const bool both = plan.offloaded_bytes > 0 && plan.activation_file_bytes > 0;
  const std::string what = fmt::format("{}{}{} need", plan.offloaded_contents, both ? " and " : "",
                                       plan.activation_file_bytes > 0 ? "activations" : "");
  require<DoesNotFitError>(in_files <= free,
                           "{} {} of disk, but {} has {} free; free space there, or choose another "
                           "offload.path",
                           what, format_bytes(in_files), directory.string(), format_bytes(free));
}

}  // namespace llmtrain::train
