#include "lib/checkpoint/store.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "lib/base/directory.hpp"
#include "lib/base/file_errors.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/checkpoint/shared_check.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTrashPrefix = ".trash-";

/// The step of a committed checkpoint's directory name; nothing for any other name.
std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return {};
  const std::string_view digits = name.substr(kStepPrefix.size());
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || step_directory_name(step) != name) return {};
  return step;
}

/// The name before `mark` if the entry is one of ours with such a mark, else nothing.
std::optional<std::string> marked(const std::string& name, std::string_view mark) {
  const std::size_t at = name.find(mark);
  if (at == std::string::npos) return {};
  const std::string base = name.substr(0, at);
  constexpr std::array<std::string_view, 4> kFiles{"latest", "lock", kLocalRecordName,
                                                   kWentBackName};
  if (!step_of(base) && std::ranges::find(kFiles, base) == kFiles.end()) return {};
  return base;
}

std::vector<std::string> entries_of(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  require<StorageError>(!error, "{}: cannot list: {}", directory.string(), error.message());
  return names;
}

}  // namespace

CheckpointStore CheckpointStore::open_reader(const fs::path& root, StoreOptions options) {
  return {root, std::move(options)};
}

CheckpointStore CheckpointStore::open_writer(const fs::path& root, StoreOptions options) {
  require<RecipeError>(options.keep_last.value_or(2) >= 2,
                       "checkpoint retention: keep_last is {}, but at least 2 are needed so that "
                       "a damaged newest checkpoint is not the end of the run",
                       options.keep_last.value_or(2));
  create_directories_durably(root);
  CheckpointStore store(root, std::move(options));
  store.lock_.emplace(StoreLock::acquire(root));
  store.clear_leftovers();
  return store;
}

void CheckpointStore::hit(std::string_view point) const {
  if (options_.failpoint) options_.failpoint(point);
}

void CheckpointStore::check_lock() const {
  require(lock_.has_value(), "{}: opened for reading", root_.string());
  lock_->check();
}

void CheckpointStore::clear_leftovers() const {
  for (const std::string& name : entries_of(root_)) {
    const std::optional<std::string> aside = marked(name, ".old-");
    if (aside && !has_entry(root_ / *aside)) {
      // A save of the same step died between its two renames: the earlier checkpoint is whole.
      rename_path(root_ / name, root_ / *aside);
    } else if (aside || marked(name, ".tmp-") || name.starts_with(kTrashPrefix)) {
      remove_tree(root_ / name);
    }
  }
}

std::uint64_t CheckpointStore::leftover_bytes() const {
  std::uint64_t bytes = 0;
  if (!has_entry(root_)) return bytes;
  for (const std::string& name : entries_of(root_)) {
    if (!marked(name, ".tmp-") && !name.starts_with(kTrashPrefix)) continue;
    std::error_code error;  // another process may be clearing it
    for (fs::recursive_directory_iterator at(root_ / name, error), end; !error && at != end;
         at.increment(error)) {
      std::error_code gone;
      const std::uint64_t size = at->is_regular_file(gone) ? at->file_size(gone) : 0;
      if (!gone) bytes += size;
    }
  }
  return bytes;
}

void CheckpointStore::check_free_space(std::uint64_t checkpoint_bytes) const {
  const std::uint64_t needed = checkpoint_bytes + checkpoint_bytes / 5;
  const std::uint64_t free = options_.free_bytes(root_);
  require<Remedied>(
      free >= needed,
      "{}: the next checkpoint needs {} free ({} and a fifth more), but there are "
      "{}; free space (older checkpoints may be deleted by hand), or save to another disk",
      root_.string(), format_bytes(needed), format_bytes(checkpoint_bytes), format_bytes(free));
}

PendingSave CheckpointStore::begin_save(std::uint64_t step) const {
  require(lock_.has_value(), "{}: opened for reading", root_.string());
  return PendingSave(
      root_, *lock_, step,
      {.max_shard_bytes = options_.max_shard_bytes, .failpoint = options_.failpoint});
}

void CheckpointStore::save(std::uint64_t step, std::vector<TensorBox> boxes, const RunState& run) {
  const auto alone = make_self_communicator("writers");
  save(step, std::move(boxes), run, *alone);
}

void CheckpointStore::save(std::uint64_t step, std::vector<TensorBox> boxes, const RunState& run,
                           Communicator& writers) {
  const auto saving = begin(step, std::move(boxes), run, writers, Writing::by_caller);
  while (!saving->advance()) {
  }
}

std::unique_ptr<CollectiveSave> CheckpointStore::begin(
    std::uint64_t step, std::vector<TensorBox> boxes, const RunState& run, Communicator& writers,
    Writing writing, WritePace::Clock::time_point pace_until, std::vector<ShardHashes> hashes) {
  verified_.erase(step);
  std::erase_if(verified_, [](const auto& of) { return of.second == Verdict::unread; });
  return std::make_unique<CollectiveSave>(*this, step, std::move(boxes), run, writers, writing,
                                          pace_until, std::move(hashes));
}

CheckpointStore::Kept CheckpointStore::choose_kept(const std::vector<std::uint64_t>& steps) const {
  if (steps.size() <= options_.keep_last.value_or(steps.size())) {
    return {.steps = {steps.begin(), steps.end()}, .unknown = {}};
  }
  Kept kept;
  kept.steps.insert(steps.end() - static_cast<std::ptrdiff_t>(*options_.keep_last), steps.end());
  constexpr std::size_t kMinValid = 2;
  std::size_t num_valid = 0;
  for (const std::uint64_t step : kept.steps) {
    const auto known = verified_.find(step);
    num_valid += known != verified_.end() && known->second == Verdict::valid ? 1 : 0;
  }
  for (auto at = steps.rbegin(); at != steps.rend() && num_valid < kMinValid; ++at) {
    const auto known = verified_.find(*at);
    if (known == verified_.end()) {
      kept.unknown.push_back(*at);
    } else if (known->second == Verdict::unread) {
      kept.steps.insert(*at);  // it may be whole
      continue;
    } else if (known->second == Verdict::damaged || kept.steps.contains(*at)) {
      continue;  // of no use, or counted above
    }
    kept.steps.insert(*at);
    ++num_valid;
  }
  if (num_valid < kMinValid) kept.steps.insert(steps.begin(), steps.end());
  for (const std::uint64_t step : steps) {
    if (options_.keep_every != 0 && step % options_.keep_every == 0) kept.steps.insert(step);
  }
  return kept;
}

std::vector<std::uint64_t> CheckpointStore::steps_to_verify() const {
  if (!options_.keep_last) return {};
  check_lock();
  return choose_kept(list()).unknown;
}

void CheckpointStore::note_verified(std::uint64_t step, std::span<const Problem> problems) {
  const bool is_unread = std::ranges::any_of(problems, &Problem::is_unread);
  verified_[step] = problems.empty() ? Verdict::valid
                    : is_unread      ? Verdict::unread
                                     : Verdict::damaged;
  if (problems.empty()) return;
  log::warning("{}: does not read back as it was written: {}; an older one is kept{}",
               directory_of(step).string(), to_string(problems),
               is_unread ? ", too" : " in its place");
}

std::vector<std::uint64_t> CheckpointStore::apply_retention() {
  if (!options_.keep_last) return {};
  check_lock();
  const std::vector<std::uint64_t> steps = list();
  const Kept kept = choose_kept(steps);
  require(kept.unknown.empty(), "{}: nobody has looked whether step {} is valid", root_.string(),
          kept.unknown.empty() ? 0 : kept.unknown.front());
  std::vector<std::uint64_t> deleted;
  for (const std::uint64_t step : steps) {
    if (kept.steps.contains(step)) continue;
    remove(step);
    verified_.erase(step);
    deleted.push_back(step);
  }
  return deleted;
}

void CheckpointStore::remove(std::uint64_t step) const {
  const fs::path trash =
      root_ / fmt::format("{}{}-{}", kTrashPrefix, step_directory_name(step), make_nonce());
  hit("retention.rename");
  rename_path(directory_of(step), trash);
  sync_directory(root_);  // a loss of power brings back the whole of it or nothing
  hit("retention.delete");
  // Of a checkpoint that was linked in the link goes, and nothing that it points to.
  if (fs::is_directory(fs::symlink_status(trash))) remove_tree(trash / kManifestName);
  hit("retention.half");
  remove_tree(trash);
}

void CheckpointStore::set_aside(std::uint64_t step, std::string_view mark) {
  check_lock();
  std::vector<std::uint64_t> newer = list();
  std::erase_if(newer, [step](std::uint64_t one) { return one <= step; });
  if (newer.empty()) return;
  if (fs::exists(directory_of(step))) {
    write_file_atomic(root_ / "latest", step_directory_name(step) + "\n");
  }
  for (auto at = newer.rbegin(); at != newer.rend(); ++at) {  // what is left has no gap
    rename_path(directory_of(*at), root_ / fmt::format("{}{}", step_directory_name(*at), mark));
    verified_.erase(*at);
  }
  sync_directory(root_);
}

std::vector<fs::path> CheckpointStore::list_aside() const {
  std::vector<fs::path> found;
  for (const std::string& name : entries_of(root_)) {
    const std::optional<std::string> step = marked(name, kAsideMark);
    if (step && step_of(*step)) found.push_back(root_ / name);
  }
  std::ranges::sort(found);
  return found;
}

fs::path CheckpointStore::directory_of(std::uint64_t step) const {
  return root_ / step_directory_name(step);
}

std::vector<std::uint64_t> CheckpointStore::list() const {
  std::vector<std::uint64_t> steps;
  if (!has_entry(root_)) return steps;
  for (const std::string& name : entries_of(root_)) {
    const std::optional<std::uint64_t> step = step_of(name);
    if (step) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<Problem> CheckpointStore::verify(std::uint64_t step, VerifyLevel level,
                                             const CheckPart& part) const {
  return verify_checkpoint(directory_of(step), step, level, part);
}

std::vector<Problem> CheckpointStore::verify(std::uint64_t step, VerifyLevel level,
                                             Communicator& checkers) const {
  return SharedCheck(*this, step, level, checkers).wait();
}

NewestValid CheckpointStore::newest_valid(VerifyLevel level) const {
  NewestValid result;
  const std::vector<std::uint64_t> steps = list();
  for (auto at = steps.rbegin(); at != steps.rend() && !result.step; ++at) {
    const std::vector<Problem> problems = verify(*at, level);
    if (problems.empty()) {
      result.step = *at;
    } else {
      result.rejected.push_back({*at, to_string(problems),
                                 std::ranges::any_of(problems, &Problem::is_unread),
                                 std::ranges::any_of(problems, &Problem::has_no_right)});
    }
  }
  return result;
}

}  // namespace llmtrain::checkpoint
