#include "lib/checkpoint/store_lock.hpp"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/json_reader.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

struct Owner {
  std::string host;
  std::uint64_t pid = 0;
  std::uint64_t start_ticks = 0;  // tells a later process with the same pid apart
  std::string job;                // of Slurm; empty without one
  std::uint64_t restarts = 0;     // of that job, before this process
};

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

/// This process as an owner.
Owner this_process() {
  const auto pid = static_cast<std::uint64_t>(::getpid());
  Owner self{.host = this_host(),
             .pid = pid,
             .start_ticks = start_ticks_of(pid).value_or(0),
             .job = variable("SLURM_JOB_ID")};
  const std::string restarts = variable("SLURM_RESTART_COUNT");  // absent the first time
  std::from_chars(restarts.data(), restarts.data() + restarts.size(), self.restarts);
  return self;
}

/// Slurm ends a job before it starts it again, perhaps on other nodes.
bool is_earlier_start(const Owner& owner, const Owner& self) {
  return !owner.job.empty() && owner.job == self.job && owner.restarts < self.restarts;
}

/// In doubt, yes.
bool is_running(const Owner& owner) {
  if (::kill(static_cast<pid_t>(owner.pid), 0) != 0 && errno == ESRCH) return false;
  return start_ticks_of(owner.pid).value_or(owner.start_ticks) == owner.start_ticks;
}

void write_owner(const fs::path& path, const Owner& owner) {
  std::string text = "{\"host\": ";
  append_json_string(text, owner.host);
  text += fmt::format(", \"pid\": {}, \"start_ticks\": {}", owner.pid, owner.start_ticks);
  if (!owner.job.empty()) {
    text += ", \"job\": ";
    append_json_string(text, owner.job);
    text += fmt::format(", \"restarts\": {}", owner.restarts);
  }
  text += "}\n";
  remove_tree(path);
  File file = File::create_new(path);
  file.write(text);
  file.sync();
  file.close();
}

Owner parse_owner(const std::string& text, const std::string& source) {
  Owner owner;
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
    } else {
      json.fail_here("unknown key");
    }
  }
  json.finish();
  seen.require_all({"host", "pid", "start_ticks"});
  return owner;
}

struct RemovedOnExit {
  fs::path path;
  ~RemovedOnExit() { ::unlink(path.c_str()); }
};

/// An exclusive flock on whatever file is at `path`; nothing if the file vanished or was replaced.
class GuardedFile {
 public:
  explicit GuardedFile(const fs::path& path) : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
    struct stat opened {
    }, named{};
    current_ = fd_ >= 0 && ::fstat(fd_, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
               opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  }
  ~GuardedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  GuardedFile(const GuardedFile&) = delete;
  GuardedFile& operator=(const GuardedFile&) = delete;
  bool is_current() const { return current_; }

 private:
  int fd_;
  bool current_ = false;
};

}  // namespace

StoreLock StoreLock::acquire(const fs::path& root) {
  const fs::path path = root / "lock";
  const Owner self = this_process();
  // The lock appears with its content (link) and changes owner with its content (rename).
  const RemovedOnExit mine{root / fmt::format("lock.tmp-{}-{}", self.host, self.pid)};
  constexpr int kMaxAttempts = 100;  // five seconds where a living process has the lock
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    write_owner(mine.path, self);
    if (::link(mine.path.c_str(), path.c_str()) == 0) return StoreLock(path, ::getpid());
    if (errno == ENOENT) continue;  // the owner clears leftovers
    require<StorageError>(errno == EEXIST, "{}: cannot create the lock: {}", path.string(),
                          std::strerror(errno));
    const GuardedFile guard(path);  // of two that find the same dead owner, one takes over
    if (!guard.is_current()) continue;
    const Owner owner = parse_owner(read_file(path, 4096), path.string());
    const std::string job =
        owner.job.empty() ? "" : fmt::format(" (Slurm job {})", printable(owner.job));
    if (is_earlier_start(owner, self)) {
      log::info("{}: taken over from process {} on host {}, an earlier start of this Slurm job {}",
                path.string(), owner.pid, printable(owner.host), self.job);
    } else if (owner.host == self.host && is_running(owner) && attempt + 1 < kMaxAttempts) {
      // Of a job whose launcher has ended a process may take a moment longer.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    } else {
      require<StorageError>(owner.host == self.host && !is_running(owner),
                            "{}: held by process {} on host {}{}; two runs must not write to one "
                            "directory. If that process no longer runs, delete the file",
                            path.string(), owner.pid, printable(owner.host), job);
    }
    rename_path(mine.path, path);
    return StoreLock(path, ::getpid());
  }
  fail<StorageError>("{}: changes owner all the time", path.string());
}

StoreLock::~StoreLock() {
  if (pid_ == ::getpid()) ::unlink(path_.c_str());
}

StoreLock::StoreLock(StoreLock&& other) noexcept
    : path_(std::move(other.path_)), pid_(std::exchange(other.pid_, 0)) {}

}  // namespace llmtrain::checkpoint
