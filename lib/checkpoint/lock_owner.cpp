#include "lib/checkpoint/lock_owner.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <linux/magic.h>
#include <optional>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <thread>
#include <unistd.h>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/json_reader.hpp"
#include "lib/checkpoint/pending_save.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string this_host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// Clock ticks between boot and the start of a process of this host (proc(5), field 22): 0 for a
/// zombie, nothing if it cannot be seen.
std::optional<std::uint64_t> start_ticks_of(std::uint64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t end_of_name = line.rfind(')');  // the name itself may hold spaces and brackets
  if (end_of_name == std::string::npos) return {};
  std::istringstream fields(line.substr(end_of_name + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int number = 4; number <= 22; ++number) fields >> field;
  std::uint64_t ticks = 0;
  std::istringstream(field) >> ticks;
  return ticks;
}

std::uint64_t this_pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

/// Of this kernel; empty where nothing tells.
std::string this_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

bool has_flock_of_all(const fs::path& directory) {
  struct statfs info {};
  return ::statfs(directory.c_str(), &info) == 0 && flock_reaches_all(info.f_type);
}

}  // namespace

LockOwner this_process() {
  const auto pid = static_cast<std::uint64_t>(::getpid());
  LockOwner self{.host = this_host(),
                 .boot_id = this_boot_id(),
                 .pid = pid,
                 .start_ticks = start_ticks_of(pid).value_or(0),
                 .job = variable("SLURM_JOB_ID"),
                 .pid_namespace = this_pid_namespace(),
                 .nonce = make_nonce()};
  const std::string restarts = variable("SLURM_RESTART_COUNT");  // absent the first time
  std::from_chars(restarts.data(), restarts.data() + restarts.size(), self.restarts);
  return self;
}

bool is_earlier_start(const LockOwner& owner, const LockOwner& self) {
  return !owner.job.empty() && owner.job == self.job && owner.restarts < self.restarts;
}

bool is_running(const LockOwner& owner, const LockOwner& self, const fs::path& root,
                DirectoryHold& hold) {
  // The host was started again since, or it is another one of the same name: processes here tell
  // nothing of it.
  if (!owner.boot_id.empty() && !self.boot_id.empty() && owner.boot_id != self.boot_id) {
    return !has_flock_of_all(root) || !hold.take(root);
  }
  if (owner.pid_namespace != 0 && owner.pid_namespace != self.pid_namespace) {
    return !hold.take(root);
  }
  if (::kill(static_cast<pid_t>(owner.pid), 0) != 0 && errno == ESRCH) return false;
  return start_ticks_of(owner.pid).value_or(owner.start_ticks) == owner.start_ticks;
}

DirectoryHold::~DirectoryHold() {
  if (fd_ >= 0) ::close(fd_);
}

bool DirectoryHold::take(const fs::path& directory) {
  if (fd_ >= 0) return true;
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
    fd_ = fd;
    return true;
  }
  const int error = errno;
  ::close(fd);
  errno = error;
  return false;
}

void DirectoryHold::insist(const fs::path& directory) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (take(directory) || errno != EWOULDBLOCK) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  log::warning(
      "{}: another process holds the directory (flock): processes of other containers "
      "cannot see that this one writes there",
      directory.string());
}

bool flock_reaches_all(long type) {
  constexpr std::array<long, 9> kTypes{
      EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,     F2FS_SUPER_MAGIC, TMPFS_MAGIC,
      RAMFS_MAGIC,      0x2fc12fc1,      OVERLAYFS_SUPER_MAGIC, NFS_SUPER_MAGIC};  // 0x2f...: ZFS
  return std::ranges::find(kTypes, type) != kTypes.end();
}

std::string to_text(const LockOwner& owner) {
  std::string text = "{\"host\": ";
  append_json_string(text, owner.host);
  text += fmt::format(", \"pid\": {}, \"start_ticks\": {}", owner.pid, owner.start_ticks);
  if (!owner.job.empty()) {
    text += ", \"job\": ";
    append_json_string(text, owner.job);
    text += fmt::format(", \"restarts\": {}", owner.restarts);
  }
  if (!owner.boot_id.empty()) {
    text += ", \"boot_id\": ";
    append_json_string(text, owner.boot_id);
  }
  if (owner.pid_namespace != 0) text += fmt::format(", \"pid_namespace\": {}", owner.pid_namespace);
  text += fmt::format(", \"nonce\": \"{}\"}}\n", owner.nonce);
  return text;
}

LockOwner parse_owner(const std::string& text, const std::string& source) {
  LockOwner owner;
  JsonReader json(text, source);
  SeenKeys seen(json);
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    seen.once(key);
    if (key == "host") {
      owner.host = json.read_string(256);
    } else if (key == "pid") {
      owner.pid = json.read_unsigned(std::numeric_limits<pid_t>::max());
    } else if (key == "start_ticks") {
      owner.start_ticks = json.read_unsigned();
    } else if (key == "job") {
      owner.job = json.read_string(256);
    } else if (key == "restarts") {
      owner.restarts = json.read_unsigned();
    } else if (key == "pid_namespace") {
      owner.pid_namespace = json.read_unsigned();
    } else if (key == "boot_id") {
      owner.boot_id = json.read_string(64);
    } else if (key == "nonce") {
      owner.nonce = json.read_string(64);
    } else {
      json.fail_here("unknown key");
    }
  }
  json.finish();
  seen.require_all({"host", "pid", "start_ticks"});
  return owner;
}

std::string to_string(const LockOwner& owner) {
  const std::string job = owner.job.empty() ? ""
                                            : fmt::format(" (Slurm job {}, start {})",
                                                          printable(owner.job), owner.restarts + 1);
  return fmt::format("process {} on host {}{}", owner.pid, printable(owner.host), job);
}

}  // namespace llmtrain::checkpoint
