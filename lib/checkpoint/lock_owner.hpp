#pragma once
/// Who has a checkpoint directory's lock, as the lock file tells it, and whether they live.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

namespace llmtrain::checkpoint {

struct LockOwner {
  std::string host;
  std::string boot_id;  // of that host's kernel; empty where nothing tells
  std::uint64_t pid = 0;
  std::uint64_t start_ticks = 0;    // tells a later process with the same pid apart
  std::string job;                  // of Slurm; empty without one
  std::uint64_t restarts = 0;       // of that job, before this process
  std::uint64_t pid_namespace = 0;  // in which pid is a process; 0 where nothing tells
  std::string nonce;                // of this lock
};

/// This process as an owner.
LockOwner this_process();
std::string to_text(const LockOwner& owner);
/// CheckpointError, naming `source`, for a text that is no lock's.
LockOwner parse_owner(const std::string& text, const std::string& source);
/// "process 12 on host b (Slurm job 71, start 3)".
std::string to_string(const LockOwner& owner);

/// Slurm ends a job before it starts it again, perhaps on other nodes.
bool is_earlier_start(const LockOwner& owner, const LockOwner& self);
/// The flock on a directory, which whoever has its lock holds as long as it lives.
class DirectoryHold {
 public:
  DirectoryHold() = default;
  ~DirectoryHold();
  DirectoryHold(DirectoryHold&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DirectoryHold& operator=(DirectoryHold&&) = delete;

  /// Whether this has it, now or already; not where another process has, or the file system knows
  /// no flock.
  bool take(const std::filesystem::path& directory);
  /// The same of whoever must have it: others who only try to take it, to see whether somebody has,
  /// give it back in a moment. That it does not, but could, is a warning.
  void insist(const std::filesystem::path& directory);

 private:
  int fd_ = -1;
};

/// Whether the owner of the lock in `root`, on a host that is called as that of `self`, lives; in
/// doubt, yes. Where processes here say nothing of it, because it is in another container, its hold
/// on the directory tells, which is taken if nobody has it; where it began before the host was
/// started, or on another one of that name, only if that flock reaches all machines.
bool is_running(const LockOwner& owner, const LockOwner& self, const std::filesystem::path& root,
                DirectoryHold& hold);

/// Whether an flock on a file system of this type (statfs) is seen by all machines that see the
/// file: local ones, which one machine sees, and NFS.
bool flock_reaches_all(long type);

}  // namespace llmtrain::checkpoint
