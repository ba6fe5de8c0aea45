#pragma once
/// A directory of checkpoints of one run, one folder per saved step.
///
///   step-00001200/manifest.json, shard-0000-0000.safetensors, ..., hf/ if it is exported
///   latest    a hint for people; readers trust manifests
///   lock      the process that may write
///   local.json  where the run has checkpoints on faster storage, if it has: another such directory
///   went-back   of a Slurm job: that it has gone back, and to which step
///   step-00001300.aside-<nonce>  a checkpoint of a way that the run has left: no run reads it,
///             retention leaves it, and without the end of its name it is one again
///
/// Leftovers of a crash (`*.tmp-*`, `.trash-*`, `*.old-*`) are never read; the next writer clears
/// them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.hpp"
#include "lib/checkpoint/collective_save.hpp"
#include "lib/checkpoint/loader.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "lib/checkpoint/store_lock.hpp"
#include "lib/checkpoint/verify.hpp"
#include "lib/comm/communicator.hpp"

namespace llmtrain::checkpoint {

/// Of the run, which alone reads and writes it.
inline constexpr std::string_view kLocalRecordName = "local.json";
inline constexpr std::string_view kWentBackName = "went-back";

/// Behind the name of a checkpoint that is set aside, before what tells its namesakes apart.
inline constexpr std::string_view kAsideMark = ".aside-";

struct StoreOptions {
  std::uint64_t max_shard_bytes = std::uint64_t{4} << 30;
  std::optional<std::size_t> keep_last = {};  // newest to keep, at least 2; keeps all if empty
  std::uint64_t keep_every = 0;               // multiples of this step are kept for good; 0: none
  /// Of the time, in which each writer in the background writes until somebody waits for it, or
  /// the time that begin() was given has come.
  double background_share = 1;
  Failpoint failpoint = {};
  std::function<std::uint64_t(const std::filesystem::path&)> free_bytes = free_disk_bytes;
  std::function<std::future<std::string>(std::function<std::string()>)> in_thread =
      checkpoint::in_thread;
};

struct Rejected {
  std::uint64_t step = 0;
  std::string reason;
  bool is_unread = false;     // it may be whole
  bool has_no_right = false;  // unread because this user may not
};

struct NewestValid {
  std::optional<std::uint64_t> step;
  std::vector<Rejected> rejected;  // newer ones that are not valid, newest first
};

/// One thread at a time; the thread of a save that is under way in the background counts for
/// save(), begin() and apply_retention().
class CheckpointStore {
 public:
  /// For looking, and for saving as one of several writers but the first: takes no lock and changes
  /// nothing by itself.
  static CheckpointStore open_reader(const std::filesystem::path& root, StoreOptions options = {});
  /// For a run: creates `root`, takes its lock and clears the leftovers of a crash. StorageError if
  /// another process holds the lock; RecipeError for keep_last below 2.
  static CheckpointStore open_writer(const std::filesystem::path& root, StoreOptions options = {});

  /// Saves all boxes of all tensors as `step`, replacing a checkpoint of the same step, then
  /// deletes what retention no longer keeps. Collective over `writers`, of whom each gives other
  /// boxes and writes files of its own; the first one has opened the store as a writer and
  /// commits, and its `run` counts. StorageError on all of them, with the remedy, if the disk is
  /// too small, full or failing; the temporary directory is then gone and every earlier checkpoint
  /// untouched. LockLost, naming the new owner, where another process has taken the lock over.
  void save(std::uint64_t step, std::vector<TensorBox> boxes, const RunState& run,
            Communicator& writers);
  /// By this process alone.
  void save(std::uint64_t step, std::vector<TensorBox> boxes, const RunState& run);
  /// The same as far as the temporary directory; CollectiveSave::advance() does the rest. Store and
  /// writers outlive it, and where it writes in the background, so does what boxes point to. One at
  /// a time. `hashes` as write_shards() wants them.
  std::unique_ptr<CollectiveSave> begin(
      std::uint64_t step, std::vector<TensorBox> boxes, const RunState& run, Communicator& writers,
      Writing writing,
      WritePace::Clock::time_point pace_until = WritePace::Clock::time_point::max(),
      std::vector<ShardHashes> hashes = {});

  /// From the next save on, what the first writer adds to each checkpoint when the shards of all
  /// are durable.
  void export_with_saves(ModelExport model) { model_export_ = std::move(model); }
  /// Null without.
  const ModelExport* model_export() const { return model_export_ ? &*model_export_ : nullptr; }

  /// On the disk, of what a crash has left, which the next writer clears.
  std::uint64_t leftover_bytes() const;
  /// StorageError unless 1.2 times `checkpoint_bytes` is free.
  void check_free_space(std::uint64_t checkpoint_bytes) const;
  /// For several writers: PendingSave here, write_shards by each, commit, then what retention asks
  /// for.
  PendingSave begin_save(std::uint64_t step) const;
  /// What retention has to know before it deletes anything: the newest steps of which nobody has
  /// looked whether they are valid, on disk, as many as it takes to keep two that are. Empty when
  /// it knows enough. LockLost as save().
  std::vector<std::uint64_t> steps_to_verify() const;
  /// What such a look has found; what is not valid is said. What could not be read stays, and is
  /// looked at again with the next save.
  void note_verified(std::uint64_t step, std::span<const Problem> problems);
  /// Keeps the newest `keep_last`, the multiples of `keep_every`, and as many older ones as it
  /// takes to keep two that were found valid; all, where there are no two. Returns the deleted
  /// steps. LockLost as save().
  std::vector<std::uint64_t> apply_retention();

  /// Gives all checkpoints that are newer than `step` names that end in `mark`, which begins with
  /// kAsideMark. LockLost as save().
  void set_aside(std::uint64_t step, std::string_view mark);
  /// Directories of those that are set aside, by name.
  std::vector<std::filesystem::path> list_aside() const;

  const std::filesystem::path& root() const { return root_; }
  const StoreOptions& options() const { return options_; }
  std::filesystem::path directory_of(std::uint64_t step) const;
  /// Steps that have a directory, ascending; nothing is said about their validity.
  std::vector<std::uint64_t> list() const;
  std::vector<Problem> verify(std::uint64_t step, VerifyLevel level,
                              const CheckPart& part = {}) const;
  /// The same by all `checkers`, who share the files, for a run that begins or goes back.
  /// Collective. Stopped, on whoever is asked to.
  std::vector<Problem> verify(std::uint64_t step, VerifyLevel level, Communicator& checkers) const;
  /// Walks back from the newest step to the first without problems.
  NewestValid newest_valid(VerifyLevel level) const;
  Loader load(std::uint64_t step) const { return Loader(directory_of(step)); }

 private:
  CheckpointStore(std::filesystem::path root, StoreOptions options)
      : root_(std::move(root)), options_(std::move(options)) {}

  friend class CollectiveSave;
  void hit(std::string_view point) const;
  void check_lock() const;
  void clear_leftovers() const;
  void remove(std::uint64_t step) const;
  struct Kept {
    std::set<std::uint64_t> steps;
    std::vector<std::uint64_t> unknown;  // kept if they are valid, newest first
  };
  /// Of `steps`, ascending, by what is known so far.
  Kept choose_kept(const std::vector<std::uint64_t>& steps) const;

  std::filesystem::path root_;
  StoreOptions options_;
  std::optional<ModelExport> model_export_;
  std::optional<StoreLock> lock_;  // held by writers
  enum class Verdict : std::uint8_t { valid, damaged, unread };
  std::map<std::uint64_t, Verdict> verified_;  // on disk, since this store was opened
};

}  // namespace llmtrain::checkpoint
