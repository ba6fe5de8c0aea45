#pragma once
/// One writer per checkpoint directory: a lock file that names its owner.

#include <filesystem>
#include <functional>
#include <string>

#include "lib/base/error.hpp"
#include "lib/checkpoint/lock_owner.hpp"

namespace llmtrain::checkpoint {

/// Another process has taken the lock over, or somebody has deleted it: nothing is to be saved here
/// any more.
class LockLost : public StorageError {
  using StorageError::StorageError;
};

/// Another process has the lock, or nobody can tell who.
class LockHeld : public StorageError {
  using StorageError::StorageError;
};

/// Holds `<root>/lock` until destroyed. Taking it over from a process of this host that no longer
/// runs is silent, and from an earlier start of the same Slurm job, on whatever host, is said; any
/// other owner is a StorageError naming host, process and job. A process that was forked while the
/// lock was held does not own it.
///
/// Slurm may start a job again while a process of a machine that it has lost still lives: that one
/// finds by the file's text, which no two locks have in common, that it is the owner no more.
class StoreLock {
 public:
  static StoreLock acquire(const std::filesystem::path& root);

  /// Removes the file if it still is this process's.
  ~StoreLock();
  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&&) = delete;

  /// LockLost, naming who has it, unless it still is this process's.
  void check() const;
  /// Checks, and runs `action` while nobody can take the lock over. What must not happen twice
  /// belongs here, and nothing that takes long.
  void while_held(const std::function<void()>& action) const;

 private:
  StoreLock(std::filesystem::path path, std::string text, DirectoryHold hold);
  /// Its file, where it still is this process's.
  void remove() const;

  std::filesystem::path path_;
  std::string text_;         // of the file
  int pid_ = 0;              // 0 after a move
  DirectoryHold directory_;  // for those who cannot see processes here
};

/// "process 12 on host b (Slurm job 71, start 3)", of a lock's text; CheckpointError, naming
/// `source`, for any other.
std::string describe_lock(const std::string& text, const std::string& source);

}  // namespace llmtrain::checkpoint
