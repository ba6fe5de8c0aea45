// Stands between a program and the C library's calls that change or read files, counts those under
// one directory, and makes one of them fail, be late, or be the last thing that the process does.
// To be loaded before the program (LD_PRELOAD), which knows nothing of it. Its environment:
//
//   IO_FAULT_UNDER  only paths with this text count
//   IO_FAULT_APART  and none with this one, if there is any
//   IO_FAULT_RANK   only in this rank of the job; every process without it
//   IO_FAULT_CALLS  names of calls that count, between commas; all but "read", "look"
//                   and "pwrite" without it
//   IO_FAULT_AT     the number, from 1, of the call that is hit; 0: all of them
//   IO_FAULT_DO     kill | tear (half of a write is done, then it is killed) | short (half of a
//                   write is done) | flip (a read gives a bit turned over) | delay:MILLISECONDS |
//                   the name of an errno
//   IO_FAULT_TRACE  a file to which every call that counts is appended, with what it wrote
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <climits>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Settings {
  std::string under = variable("IO_FAULT_UNDER");
  std::string apart = variable("IO_FAULT_APART");
  std::string calls = "," + variable("IO_FAULT_CALLS") + ",";
  std::string act = variable("IO_FAULT_DO");
  std::string trace = variable("IO_FAULT_TRACE");
  long at = std::atol(variable("IO_FAULT_AT").c_str());
  std::string rank = variable("OMPI_COMM_WORLD_RANK");  // of a process of its own: none
  bool here =
      rank.empty() || variable("IO_FAULT_RANK").empty() || variable("IO_FAULT_RANK") == rank;
};

const Settings& settings() {
  static const Settings* const kSettings = new Settings;  // outlives every other destructor
  return *kSettings;
}

std::atomic<long> counted{0};

// Paths of descriptors that may be written.
constexpr int kMaxDescriptors = 1024;
std::array<std::array<char, PATH_MAX>, kMaxDescriptors>& paths() {
  static auto* const kPaths = new std::array<std::array<char, PATH_MAX>, kMaxDescriptors>{};
  return *kPaths;
}

std::string path_of(int fd) {
  return fd >= 0 && fd < kMaxDescriptors ? paths()[static_cast<std::size_t>(fd)].data() : "";
}

void set_path(int fd, const std::string& path) {
  if (fd < 0 || fd >= kMaxDescriptors) return;
  std::snprintf(paths()[static_cast<std::size_t>(fd)].data(), PATH_MAX, "%s", path.c_str());
}

std::string at_directory(int directory, const char* name) {
  if (name[0] == '/') return name;
  std::array<char, PATH_MAX> base{};
  const std::string link =
      directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(directory);
  const ssize_t n = ::readlink(link.c_str(), base.data(), base.size() - 1);
  return std::string(base.data(), n > 0 ? static_cast<std::size_t>(n) : 0) + "/" + name;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

int errno_named(std::string_view name) {
  struct Row {
    std::string_view name;
    int value;
  };
  constexpr std::array kRows{Row{"ENOSPC", ENOSPC}, Row{"EDQUOT", EDQUOT}, Row{"EIO", EIO},
                             Row{"EINTR", EINTR},   Row{"EROFS", EROFS},   Row{"EXDEV", EXDEV},
                             Row{"EACCES", EACCES}};
  for (const Row& row : kRows) {
    if (row.name == name) return row.value;
  }
  return 0;
}

// "call <path> <second path> <bytes>\n", tabs between, and as many bytes.
void trace(std::string_view call, const std::string& path, const std::string& second,
           std::string_view data) {
  static std::mutex mutex;
  static const int fd =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, settings().trace.c_str(),
                                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  std::string line(call);
  line += "\t" + path + "\t" + second + "\t" + std::to_string(data.size()) + "\n";
  line += data;
  const std::lock_guard lock(mutex);
  ::syscall(SYS_write, fd, line.data(), line.size());
}

enum class Verdict { go_on, fails, halves, flips };

bool counts_reads() {
  static const bool kCounts = settings().calls.find(",read,") != std::string::npos;
  return kCounts;
}

bool counts_offset_writes() {
  static const bool kCounts = settings().calls.find(",pwrite,") != std::string::npos;
  return kCounts;
}

bool counts_looks() {
  static const bool kCounts = settings().calls.find(",look,") != std::string::npos;
  return kCounts;
}

std::string path_of_any(int fd) {
  std::array<char, PATH_MAX> path{};
  const ssize_t n =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size() - 1);
  return {path.data(), n > 0 ? static_cast<std::size_t>(n) : 0};
}

// What happens to a call that changes or reads `path`; errno is set where it fails.
Verdict judge(std::string_view call, const std::string& path, const std::string& second = "",
              std::string_view data = {}) {
  const Settings& s = settings();
  if (s.under.empty() || path.find(s.under) == std::string::npos) return Verdict::go_on;
  if (!s.apart.empty() && path.find(s.apart) != std::string::npos) return Verdict::go_on;
  if (s.calls != ",," && s.calls.find("," + std::string(call) + ",") == std::string::npos) {
    return Verdict::go_on;
  }
  if (!s.here) return Verdict::go_on;
  if (!s.trace.empty()) trace(call, path, second, data);
  const long number = ++counted;
  if (s.act.empty() || (s.at != 0 && number != s.at)) return Verdict::go_on;
  if (s.act == "kill") ::kill(::getpid(), SIGKILL);
  if (s.act == "tear" || s.act == "short") {
    if (call == "write" || call == "read") return Verdict::halves;
    if (s.act == "tear") ::kill(::getpid(), SIGKILL);
    return Verdict::go_on;
  }
  if (s.act == "flip") return call == "read" ? Verdict::flips : Verdict::go_on;
  if (s.act.starts_with("delay:")) {
    const std::chrono::milliseconds whole(std::atol(s.act.c_str() + 6));
    const auto end = std::chrono::steady_clock::now() + whole;  // signals end a sleep before that
    while (std::chrono::steady_clock::now() < end) std::this_thread::sleep_until(end);
    return Verdict::go_on;
  }
  errno = errno_named(s.act);
  return Verdict::fails;
}

int after_open(int fd, const std::string& path, int flags) {
  const bool directory = (flags & O_DIRECTORY) != 0;
  if (fd >= 0 && ((flags & O_ACCMODE) != O_RDONLY || directory)) set_path(fd, path);
  return fd;
}

int open_judged(int directory, const char* name, int flags, mode_t mode) {
  const std::string path = at_directory(directory, name);
  const bool creates = (flags & O_CREAT) != 0;
  if (creates && judge("open", path) == Verdict::fails) return -1;
  const bool reads = !creates && (flags & O_ACCMODE) == O_RDONLY;
  if (reads && counts_looks() && judge("look", path) == Verdict::fails) return -1;
  const auto fd = static_cast<int>(::syscall(SYS_openat, directory, name, flags, mode));
  return after_open(fd, path, flags);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_judged(AT_FDCWD, name, flags, mode);
}

int open64(const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_judged(AT_FDCWD, name, flags, mode);
}

int openat(int directory, const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_judged(directory, name, flags, mode);
}

ssize_t write(int fd, const void* data, std::size_t size) {
  const auto call = real<ssize_t (*)(int, const void*, std::size_t)>("write");
  const std::string path = path_of(fd);
  if (path.empty()) return call(fd, data, size);
  switch (judge("write", path, "", {static_cast<const char*>(data), size})) {
    case Verdict::go_on:
    case Verdict::flips:
      return call(fd, data, size);
    case Verdict::fails:
      return -1;
    case Verdict::halves:
      break;
  }
  const ssize_t half = call(fd, data, size > 1 ? size / 2 : size);
  if (settings().act == "tear") ::kill(::getpid(), SIGKILL);
  return half;
}

ssize_t pread64(int fd, void* data, std::size_t size, off64_t offset) {
  const auto call = real<ssize_t (*)(int, void*, std::size_t, off64_t)>("pread64");
  const Verdict verdict = counts_reads() ? judge("read", path_of_any(fd)) : Verdict::go_on;
  if (verdict == Verdict::fails) return -1;
  const ssize_t n =
      call(fd, data, verdict == Verdict::halves && size > 1 ? size / 2 : size, offset);
  if (verdict == Verdict::flips && n > 0) static_cast<char*>(data)[n / 2] ^= 1;
  return n;
}

ssize_t pread(int fd, void* data, std::size_t size, off_t offset) {
  return pread64(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, std::size_t size, off64_t offset) {
  const auto call = real<ssize_t (*)(int, const void*, std::size_t, off64_t)>("pwrite64");
  const bool counts = counts_offset_writes();
  const Verdict verdict = counts ? judge("pwrite", path_of_any(fd)) : Verdict::go_on;
  return verdict == Verdict::fails ? -1 : call(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void* data, std::size_t size, off_t offset) {
  return pwrite64(fd, data, size, offset);
}

int stat(const char* name, struct stat* found) {
  if (counts_looks() && judge("look", at_directory(AT_FDCWD, name)) == Verdict::fails) return -1;
  return real<int (*)(const char*, struct stat*)>("stat")(name, found);
}

int lstat(const char* name, struct stat* found) {
  if (counts_looks() && judge("look", at_directory(AT_FDCWD, name)) == Verdict::fails) return -1;
  return real<int (*)(const char*, struct stat*)>("lstat")(name, found);
}

int fstat(int fd, struct stat* found) {
  if (counts_looks() && judge("look", path_of_any(fd)) == Verdict::fails) return -1;
  return real<int (*)(int, struct stat*)>("fstat")(fd, found);
}

dirent* readdir(DIR* directory) {
  if (counts_looks() && judge("look", path_of_any(::dirfd(directory))) == Verdict::fails) {
    return nullptr;
  }
  return real<dirent* (*)(DIR*)>("readdir")(directory);
}

int fsync(int fd) {
  if (judge("fsync", path_of(fd)) == Verdict::fails) return -1;
  return real<int (*)(int)>("fsync")(fd);
}

int sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned flags) {
  if (judge("sync_range", path_of(fd)) == Verdict::fails) return -1;
  return real<int (*)(int, off64_t, off64_t, unsigned)>("sync_file_range")(fd, offset, bytes,
                                                                           flags);
}

int close(int fd) {
  const std::string path = path_of(fd);
  const bool fails = !path.empty() && judge("close", path) == Verdict::fails;
  const int reason = errno;
  set_path(fd, "");
  const int result = real<int (*)(int)>("close")(fd);
  if (!fails) return result;
  errno = reason;
  return -1;
}

int rename(const char* from, const char* to) {
  const std::string path = at_directory(AT_FDCWD, from);
  if (judge("rename", path, at_directory(AT_FDCWD, to)) == Verdict::fails) return -1;
  return real<int (*)(const char*, const char*)>("rename")(from, to);
}

int link(const char* from, const char* to) {
  const std::string path = at_directory(AT_FDCWD, from);
  if (judge("link", path, at_directory(AT_FDCWD, to)) == Verdict::fails) return -1;
  return real<int (*)(const char*, const char*)>("link")(from, to);
}

int mkdir(const char* name, mode_t mode) {
  if (judge("mkdir", at_directory(AT_FDCWD, name)) == Verdict::fails) return -1;
  return real<int (*)(const char*, mode_t)>("mkdir")(name, mode);
}

int unlink(const char* name) {
  if (judge("unlink", at_directory(AT_FDCWD, name)) == Verdict::fails) return -1;
  return real<int (*)(const char*)>("unlink")(name);
}

int unlinkat(int directory, const char* name, int flags) {
  if (judge("unlink", at_directory(directory, name)) == Verdict::fails) return -1;
  return real<int (*)(int, const char*, int)>("unlinkat")(directory, name, flags);
}

int rmdir(const char* name) {
  if (judge("unlink", at_directory(AT_FDCWD, name)) == Verdict::fails) return -1;
  return real<int (*)(const char*)>("rmdir")(name);
}

int remove(const char* name) {
  if (judge("unlink", at_directory(AT_FDCWD, name)) == Verdict::fails) return -1;
  return real<int (*)(const char*)>("remove")(name);
}
}
