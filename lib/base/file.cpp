#include "lib/base/file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "lib/base/activity.hpp"
#include "lib/base/file_errors.hpp"
#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/base/unfinished_write.hpp"

namespace llmtrain {

namespace {

// What helps against a full disk.
std::string_view remedy_for(int error) {
  if (error == ENOSPC || error == EDQUOT) return "; free space there, or write to another disk";
  if (error == EFBIG) return "; files there may not grow so long, see `ulimit -f`";
  return "";
}

/// "3f2a77c1-4711": of no other process that sees the same files.
std::string process_name() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{:08x}-{}", static_cast<std::uint32_t>(hash64(std::string_view(host))),
                     static_cast<long>(::getpid()));
}

std::string message_of(int error, std::string_view action, const std::filesystem::path& path) {
  return fmt::format("{}: cannot {}: {}{}", path.string(), action, std::strerror(error),
                     remedy_for(error));
}

/// Of storage.
[[noreturn]] void fail_errno(std::string_view action, const std::filesystem::path& path) {
  const int error = errno;
  const std::string message = message_of(error, action, path);
  if (NotWritable::is_meant_by(error)) throw NotWritable(message, error);
  if (!remedy_for(error).empty()) throw Remedied(message);
  throw StorageError(message);
}

[[noreturn]] void fail_to_look(std::string_view action, const std::filesystem::path& path) {
  const int error = errno;
  const std::string message = message_of(error, action, path);
  if (error == EACCES || error == EPERM) throw NoRight(message);
  if (is_of_the_path(error)) throw DataError(message);
  throw StorageError(message);
}

constexpr std::size_t kMaxIoBytes = std::size_t{1} << 30;

bool are_whole_blocks(std::span<const std::byte> memory) {
  return (memory.size() | reinterpret_cast<std::uintptr_t>(memory.data())) % File::kDirectBlock ==
         0;
}

// What a file system says that knows no way past the cache, and a driver whose pinned memory a disk
// cannot reach.
bool is_of_direct_io(int error) { return error == EINVAL || error == EFAULT; }

// O_NONBLOCK, because opening a FIFO would wait for its writer; regular files ignore it.
int open_for_reading(const std::filesystem::path& path, int extra_flags) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | extra_flags);
  if (fd < 0) fail_to_look("open for reading", path);
  return fd;
}

// sync_file_range. An error of the disk is reported once: who meets it here must say so. File
// systems that cannot are left alone.
void write_back(int fd, const std::filesystem::path& path, std::uint64_t offset,
                std::uint64_t bytes, unsigned flags) {
  while (::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), flags) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL || errno == ENOSYS || errno == ESPIPE || errno == EOPNOTSUPP) return;
    fail_errno("write", path);
  }
  activity::tick();
}

}  // namespace

bool NotWritable::is_meant_by(int error) {
  return error == EACCES || error == EPERM || error == EROFS;
}

File File::open_read(const std::filesystem::path& path) {
  return from_regular(open_for_reading(path, 0), path);
}

File File::open_read_nofollow(const std::filesystem::path& path) {
  return from_regular(open_for_reading(path, O_NOFOLLOW), path);
}

File File::from_regular(int fd, const std::filesystem::path& path) {
  File file(fd, path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail_to_look("stat", path);
  require<DataError>(S_ISREG(info.st_mode), "{}: not a regular file", path.string());
  return file;
}

File File::create_new(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) fail_errno("create", path);
  return File(fd, path);
}

File File::create_unnamed(const std::filesystem::path& directory) {
  int fd = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // not every file system has it
    std::string name = (directory / ".unnamed-XXXXXX").string();
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) fail_errno("create a temporary file in", directory);
  return {fd, directory / "(temporary file)"};
}

File File::open_append(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) fail_errno("open for appending", path);
  return File(fd, path);
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      bypasses_cache_(other.bypasses_cache_),
      path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bypasses_cache_, other.bypasses_cache_);
  std::swap(path_, other.path_);
  return *this;
}

std::uint64_t File::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail_to_look("stat", path_);
  return static_cast<std::uint64_t>(info.st_size);
}

void File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    if (!are_whole_blocks(out)) goes_to_cache();
    const ssize_t n =
        ::pread(fd_, out.data(), std::min(out.size(), kMaxIoBytes), static_cast<off_t>(offset));
    activity::tick();
    if (n < 0 && (errno == EINTR || (is_of_direct_io(errno) && goes_to_cache()))) continue;
    if (n < 0) fail_errno("read", path_);
    require<DataError>(n > 0, "{}: ends at byte {}, {} more bytes expected (truncated?)",
                       path_.string(), offset, out.size());
    offset += static_cast<std::uint64_t>(n);
    out = out.subspan(static_cast<std::size_t>(n));
  }
}

void File::expect_straight_reading() { ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL); }

bool File::set_direct(bool on) const {
  const int flags = ::fcntl(fd_, F_GETFL);
  return flags >= 0 && ::fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

bool File::goes_to_cache() const {
  return std::exchange(bypasses_cache_, false) && set_direct(false);
}

void File::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!are_whole_blocks(bytes)) goes_to_cache();
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kMaxIoBytes));
    activity::tick();
    if (n < 0 && (errno == EINTR || (is_of_direct_io(errno) && goes_to_cache()))) continue;
    if (n <= 0) fail_errno("write", path_);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void File::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void File::start_write_back(std::uint64_t offset, std::uint64_t bytes) {
  write_back(fd_, path_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void File::finish_write_back(std::uint64_t offset, std::uint64_t bytes) {
  write_back(fd_, path_, offset, bytes,
             SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  // Advice: what stays in the cache does no harm.
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

void File::sync() {
  if (::fsync(fd_) != 0) fail_errno("fsync", path_);
}

void File::close() {
  if (::close(std::exchange(fd_, -1)) != 0) fail_errno("close", path_);
}

void FreeBlocks::operator()(std::byte* memory) const { std::free(memory); }

BlockMemory make_block_memory(std::size_t bytes) {
  // Of a large page the system looks up one address where it would look up 512.
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes < kLargePage ? File::kDirectBlock : kLargePage;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kLargePage) ::madvise(memory, whole, MADV_HUGEPAGE);
  return BlockMemory(static_cast<std::byte*>(memory));
}

std::string read_file(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  const File file = File::open_read(path);
  const std::uint64_t size = file.size();
  require<DataError>(size <= limit_bytes, "{}: {} bytes, but at most {} are accepted here",
                     path.string(), size, limit_bytes);
  std::string content(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(content)));
  return content;
}

namespace {

constexpr std::string_view kUnfinished = ".tmp-";

}  // namespace

bool is_unfinished_write(std::string_view file_name) {
  const std::size_t at = file_name.rfind(kUnfinished);
  if (at == file_name.npos) return false;
  const std::string_view process = file_name.substr(at + kUnfinished.size());
  const std::string_view host = process.substr(0, process.find('-'));
  return host.size() == 8 && process.size() > 9 &&
         host.find_first_not_of("0123456789abcdef") == host.npos &&
         process.find_first_not_of("0123456789", 9) == process.npos;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  // Tasks on several hosts may write the same file at the same time.
  const std::filesystem::path temporary = path.string() + std::string(kUnfinished) + process_name();
  ::unlink(temporary.c_str());
  try {
    File file = File::create_new(temporary);
    file.write(content);
    file.sync();
    file.close();
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    errno = reason;
    fail_errno("rename a temporary file to it", path);
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : ".");
}

void sync_directory(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_errno("open the directory", path);
  const int result = ::fsync(fd);
  const int reason = errno;
  ::close(fd);
  errno = reason;
  if (result == 0) return;
  require<StorageError>(reason != EINVAL && reason != ENOSYS && reason != ENOTSUP,
                        "{}: its file system cannot fsync a directory ({}), so that nothing that "
                        "is made there is known to be durable; use a directory of another one",
                        path.string(), std::strerror(reason));
  fail_errno("fsync the directory", path);
}

bool is_of_the_path(int error) {
  constexpr std::array kOfThePath{ENOENT, ENOTDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG, ENXIO};
  return std::ranges::find(kOfThePath, error) != kOfThePath.end();
}

std::uint64_t free_disk_bytes(const std::filesystem::path& path) {
  std::filesystem::path probe = std::filesystem::absolute(path);
  while (!std::filesystem::exists(probe) && probe.has_relative_path()) probe = probe.parent_path();
  struct statvfs info {};
  if (::statvfs(probe.c_str(), &info) != 0) fail_errno("ask for free space", probe);
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace llmtrain
