#pragma once
/// One writer per checkpoint directory: a lock file that names its owner.

#include <filesystem>
#include <string>

namespace llmtrain::checkpoint {

/// Holds `<root>/lock` until destroyed. Taking it over from a process of this host that no longer
/// runs is silent, and from an earlier start of the same Slurm job, on whatever host, is said; any
/// other owner is a StorageError naming host, process and job. A process that was forked while the
/// lock was held does not own it.
class StoreLock {
 public:
  static StoreLock acquire(const std::filesystem::path& root);

  ~StoreLock();
  StoreLock(StoreLock&& other) noexcept;
  StoreLock& operator=(StoreLock&&) = delete;

 private:
  StoreLock(std::filesystem::path path, int pid) : path_(std::move(path)), pid_(pid) {}
  std::filesystem::path path_;
  int pid_ = 0;  // 0 after a move
};

}  // namespace llmtrain::checkpoint
