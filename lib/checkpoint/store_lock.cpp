#include "lib/checkpoint/store_lock.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "lib/base/directory.hpp"
#include "lib/base/file.hpp"
#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/base/stop_request.hpp"
#include "lib/checkpoint/json_reader.hpp"
#include "lib/checkpoint/lock_owner.hpp"
#include "lib/checkpoint/stored_read.hpp"

namespace llmtrain::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxLockBytes = 4096;

/// What `call` returns when no signal interrupts it.
constexpr std::string_view kWaitingForLock = "waiting for the directory's lock";
constexpr std::chrono::milliseconds kPause{50};

template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Empty, with `error`, where it cannot be read; cut at the limit.
std::string text_of(const fs::path& path, std::error_code& error) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (fd < 0) {
    error = std::error_code(errno, std::generic_category());
    return "";
  }
  std::string text(kMaxLockBytes, '\0');
  std::size_t size = 0;
  ssize_t n = 1;
  while (n > 0 && size < text.size()) {
    n = uninterrupted(
        [&] { return ::pread(fd, &text[size], text.size() - size, static_cast<off_t>(size)); });
    size += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
  }
  if (n < 0) error = std::error_code(errno, std::generic_category());
  ::close(fd);
  text.resize(n < 0 ? 0 : size);
  return text;
}

/// Of a file without which a run goes on, and which the next start clears.
void remove_or_say(const fs::path& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return;
  log::warning("{}: cannot remove it: {} (harmless: the next start does)", path.string(),
               std::strerror(errno));
}

/// What becomes the lock; removed unless it has.
class LockFile {
 public:
  explicit LockFile(fs::path path) : path_(std::move(path)) {}
  ~LockFile() {
    if (is_made_) remove_or_say(path_);  // a directory for reading alone never had it
  }
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  void write(const std::string& text) {
    remove_tree(path_);
    File file = File::create_new(path_);
    is_made_ = true;
    file.write(text);
    file.sync();
    file.close();
  }
  const fs::path& path() const { return path_; }
  void become(const fs::path& lock) {
    rename_path(path_, lock);
    is_made_ = false;
  }

 private:
  fs::path path_;
  bool is_made_ = false;
};

/// An exclusive flock on whatever file is at `path`; nothing if the file vanished or was replaced.
/// Waits for whoever is at it, as an owner that commits a save, and says so.
class GuardedFile {
 public:
  explicit GuardedFile(const fs::path& path) : GuardedFile(path, {}) {}
  struct Waiting {
    bool is_said = true;      // else somebody has said it before
    bool ends_asked = false;  // Stopped, when a signal asks to stop
  };
  GuardedFile(const fs::path& path, const Waiting& waiting) : fd_(open_either_way(path)) {
    require<StorageError>(fd_ >= 0 || errno == ENOENT,
                          "{}: cannot open the lock: {}; nobody can tell who has the directory. If "
                          "no other run writes there, delete it",
                          path.string(), std::strerror(errno));
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      has_waited_ = true;
      if (waiting.is_said) log::info("{}: waits for a process that is at it", path.string());
      wait(waiting);
    }
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
  bool has_waited() const { return has_waited_; }

 private:
  void wait(const Waiting& waiting) const {
    if (!waiting.ends_asked) {
      uninterrupted([&] { return ::flock(fd_, LOCK_EX); });
      return;
    }
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      try {
        stop_if_asked(kWaitingForLock);
      } catch (...) {
        ::close(fd_);  // nobody else will
        throw;
      }
      std::this_thread::sleep_for(kPause);
    }
  }
  /// For reading where another user has the file; NFS wants a writer for an exclusive flock.
  static int open_either_way(const fs::path& path) {
    const auto open = [&](int how) {
      return uninterrupted([&] { return ::open(path.c_str(), how | O_CLOEXEC); });
    };
    const int fd = open(O_RDWR);
    return fd < 0 && (errno == EACCES || errno == EROFS) ? open(O_RDONLY) : fd;
  }

  int fd_;
  bool current_ = false, has_waited_ = false;
};

LockOwner owner_in(const fs::path& path) {
  try {
    const std::string text = read_patiently([&] { return read_file(path, kMaxLockBytes); });
    return parse_owner(text, path.string());
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::invalid_data) throw;
    fail<LockHeld>(
        "{}; nobody can tell who has the directory. If no other run writes there, delete the file",
        error.what());
  }
}

[[noreturn]] void fail_held(const fs::path& path, const LockOwner& owner) {
  fail<LockHeld>(
      "{}: held by {}; two runs must not write to one directory. If that process no longer runs, "
      "delete the file",
      path.string(), to_string(owner));
}

enum class Found { ours, lives, gone };

struct Patience {
  bool is_over = false;
  bool has_waited = false;  // for another one that is at the lock, and has said so
};

/// Takes the lock at `path` over with the file `mine` where its owner no longer runs. StorageError
/// where it may, but for a process of this host, which may be about to end, while there is
/// patience.
Found take_over(const fs::path& path, const LockOwner& self, LockFile& mine, Patience& patience,
                DirectoryHold& hold) {
  // Of two that find the same dead owner, one takes over.
  const GuardedFile guard(path, {.is_said = !patience.has_waited, .ends_asked = true});
  patience.has_waited = patience.has_waited || guard.has_waited();
  if (!guard.is_current()) return Found::gone;
  const LockOwner owner = owner_in(path);
  if (is_earlier_start(owner, self)) {
    log::info("{}: taken over from process {} on host {}, an earlier start of this Slurm job {}",
              path.string(), owner.pid, printable(owner.host), self.job);
  } else {
    // Containers of one machine have names of their own.
    const bool is_here =
        owner.host == self.host || (!owner.boot_id.empty() && owner.boot_id == self.boot_id);
    const bool lives = !is_here || is_running(owner, self, path.parent_path(), hold);
    if (lives && is_here && !patience.is_over) return Found::lives;
    if (lives) fail_held(path, owner);
  }
  mine.become(path);
  return Found::ours;
}

}  // namespace

StoreLock StoreLock::acquire(const fs::path& root) {
  const fs::path path = root / "lock";
  const LockOwner self = this_process();
  const std::string text = to_text(self);
  // The lock appears with its content (link) and changes owner with its content (rename).
  LockFile mine(root / fmt::format("lock.tmp-{}", self.nonce));
  constexpr int kMaxAttempts = 100;  // five seconds where a living process has the lock
  Patience patience;
  // Before the lock is there: who finds it shall not find its owner dead.
  DirectoryHold hold;
  hold.take(root);
  for (int attempt = 1; attempt <= kMaxAttempts; ++attempt) {
    mine.write(text);
    if (::link(mine.path().c_str(), path.c_str()) == 0) {
      return StoreLock(path, text, std::move(hold));
    }
    if (errno == ENOENT) continue;  // the owner clears leftovers
    require<StorageError>(errno == EEXIST, "{}: cannot create the lock: {}", path.string(),
                          std::strerror(errno));
    patience.is_over = attempt == kMaxAttempts;
    const Found found = take_over(path, self, mine, patience, hold);
    if (found == Found::ours) return StoreLock(path, text, std::move(hold));
    if (found == Found::gone) continue;
    // Of a job whose launcher has ended a process may take a moment longer. Its owner can go on
    // meanwhile: nothing of the lock is held here.
    stop_if_asked(kWaitingForLock);
    std::this_thread::sleep_for(kPause);
  }
  fail<LockHeld>("{}: changes owner all the time", path.string());
}

std::string describe_lock(const std::string& text, const std::string& source) {
  return to_string(parse_owner(text, source));
}

StoreLock::StoreLock(fs::path path, std::string text, DirectoryHold hold)
    : path_(std::move(path)),
      text_(std::move(text)),
      pid_(::getpid()),
      directory_(std::move(hold)) {
  directory_.insist(path_.parent_path());
}

StoreLock::~StoreLock() {
  if (pid_ != ::getpid()) return;
  try {
    remove();
  } catch (const Error& error) {  // perhaps while the error of the same storage is on its way
    log::warning("{} (the lock stays)", error.what());
  }
}

void StoreLock::remove() const {
  const GuardedFile guard(path_);
  if (!guard.is_current()) return;
  std::error_code error;
  const std::string now = text_of(path_, error);
  if (now == text_) {
    remove_or_say(path_);
  } else if (error && error != std::errc::no_such_file_or_directory) {
    log::warning("{}: cannot read the lock: {} (harmless: it stays, and the next start takes it)",
                 path_.string(), error.message());
  }
}

StoreLock::StoreLock(StoreLock&& other) noexcept
    : path_(std::move(other.path_)),
      text_(std::move(other.text_)),
      pid_(std::exchange(other.pid_, 0)),
      directory_(std::move(other.directory_)) {}

void StoreLock::check() const {
  std::error_code error;
  const std::string now = read_patiently([&] {
    error.clear();
    std::string text = text_of(path_, error);
    require<StorageError>(!error || error == std::errc::no_such_file_or_directory,
                          "{}: cannot read the lock: {}", path_.string(), error.message());
    return text;
  });
  if (now == text_) return;
  require<LockLost>(!error,
                    "{}: the lock was deleted while this process held it, so another one may write "
                    "there: nothing more is saved there until the run is started again",
                    path_.string());
  std::string owner = "a process whose name in it cannot be read";
  try {
    owner = describe_lock(now, path_.string());
  } catch (const CheckpointError&) {
  }
  fail<LockLost>(
      "{}: taken over by {}, because this process was believed to be gone: that one has it now, "
      "and "
      "nothing more is saved there",
      path_.string(), owner);
}

void StoreLock::while_held(const std::function<void()>& action) const {
  const GuardedFile guard(path_);
  check();
  action();
}

}  // namespace llmtrain::checkpoint
