#include "lib/offload/scratch_file.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "lib/base/activity.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::offload {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kRemedy = "; free space there, or choose another offload.path";

/// What a kill has left there between the creation of a file and the end of its name. Whose owner
/// lives misses it as little.
void remove_names(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(".unnamed-")) found.push_back(at->path());
  }
  for (const fs::path& path : found) ::unlink(path.c_str());
}

[[noreturn]] void fail_in(const fs::path& directory, std::string_view action, int reason) {
  const bool is_full = reason == ENOSPC || reason == EDQUOT;
  fail<StorageError>("{}: cannot {}: {}{}", directory.string(), action, std::strerror(reason),
                     is_full ? kRemedy : "");
}

int create(const fs::path& directory) {
  int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // not every file system has it
    std::string name = (directory / ".unnamed-XXXXXX").string();
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) fail_in(directory, "create a file without a name", errno);
  return fd;
}

int take_blocks(int fd, std::uint64_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  return error;
}

/// Without a look at what is there: where a file system cannot do it, posix_fallocate would read
/// and write each block of the file.
int take_more_blocks(int fd, std::uint64_t from, std::uint64_t to) {
  const auto begin = static_cast<off_t>(from), size = static_cast<off_t>(to - from);
  int done = -1;
  do {
    done = ::fallocate(fd, 0, begin, size);
  } while (done != 0 && errno == EINTR);
  if (done != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) done = ::ftruncate(fd, begin + size);
  return done == 0 ? 0 : errno;
}

bool set_direct(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

ScratchFile::ScratchFile(const fs::path& directory, std::uint64_t bytes)
    : bytes_(bytes), directory_(directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  require<StorageError>(!error, "{}: cannot create the directory: {}", directory.string(),
                        error.message());
  remove_names(directory);
  const int fd = create(directory);
  if (const int reason = take_blocks(fd, bytes); reason != 0) {
    ::close(fd);
    fail_in(directory, fmt::format("take {} bytes of disk", bytes), reason);
  }
  fd_ = fd;
  bypasses_cache_ = set_direct(fd_, true);
}

ScratchFile::~ScratchFile() {
  if (fd_ >= 0) ::close(fd_);
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      directory_(std::move(other.directory_)),
      bypasses_cache_(other.bypasses_cache_) {}

std::uint64_t ScratchFile::grow(std::uint64_t least, std::uint64_t wanted) {
  int reason = 0;
  for (const std::uint64_t bytes : {wanted, least}) {
    if (bytes <= bytes_) return bytes_;
    reason = take_more_blocks(fd_, bytes_, bytes);
    if (reason == 0) return bytes_ = bytes;
  }
  fail_in(directory_, fmt::format("take {} bytes of disk", least), reason);
}

std::string ScratchFile::name() const {
  return fmt::format("{} (a file without a name there)", directory_.string());
}

void ScratchFile::stop_bypassing() {
  bypasses_cache_ = false;
  set_direct(fd_, false);
}

void ScratchFile::fail_at(bool is_write, std::uint64_t offset, std::int64_t result) const {
  const auto reason = static_cast<int>(-result);
  const bool is_full = reason == ENOSPC || reason == EDQUOT;
  fail<StorageError>("{}: cannot {} at byte {}: {}{}", name(), is_write ? "write" : "read", offset,
                     result == 0 ? "the file ends there" : std::strerror(reason),
                     is_full ? kRemedy : "");
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    activity::tick();
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_at(false, offset, n < 0 ? -errno : 0);
    offset += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
}

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    activity::tick();
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_at(true, offset, n < 0 ? -errno : 0);
    offset += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace llmtrain::offload
