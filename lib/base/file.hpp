#pragma once
/// Checked file I/O. Every failure is a StorageError (writing) or DataError (reading) that names
/// the path and the system's reason; short writes and failed fsyncs are failures.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// An open file descriptor; closed on destruction. Move-only.
class File {
 public:
  /// Opens for reading; DataError if that fails or the path is not a regular file.
  static File open_read(const std::filesystem::path& path);
  /// As open_read, and refuses a symbolic link: for names that were read from an untrusted file.
  static File open_read_nofollow(const std::filesystem::path& path);
  /// Creates a new file for writing with O_EXCL and O_NOFOLLOW; StorageError if it exists.
  static File create_new(const std::filesystem::path& path);
  /// A new file without a name in `directory`, for writing and reading; gone when it is closed.
  static File create_unnamed(const std::filesystem::path& directory);
  /// Opens for appending, creating the file if needed.
  static File open_append(const std::filesystem::path& path);

  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const;
  /// Reads exactly out.size() bytes at `offset` (pread); DataError when the file ends before.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// Most of it will be read from its beginning to its end: the system reads further ahead.
  void expect_straight_reading();
  /// From now on bytes go between memory and disk past the page cache (O_DIRECT), where the file
  /// system can. The first read_at() or write() that is not of whole blocks of kDirectBlock bytes,
  /// in memory, too, or that the file system refuses, or whose memory the disk cannot reach, and
  /// all after it, go through the cache.
  void bypass_cache() { bypasses_cache_ = set_direct(true); }
  static constexpr std::size_t kDirectBlock = 4096;
  /// Sends what the page cache has of bytes [offset, offset + bytes) to the disk, where the file
  /// system can, and does not wait for it. That makes nothing durable: sync() does.
  void start_write_back(std::uint64_t offset, std::uint64_t bytes);
  /// Waits until the disk has them, and takes them out of the cache.
  void finish_write_back(std::uint64_t offset, std::uint64_t bytes);
  /// Writes all bytes at the current position, retrying interrupted and short writes.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Flushes data and metadata to storage; never retried after a failure.
  void sync();
  /// Closes and reports a failing close.
  void close();

 private:
  File(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  static File from_regular(int fd, const std::filesystem::path& path);
  bool set_direct(bool on) const;
  /// No more past the cache; whether that changes anything.
  bool goes_to_cache() const;
  int fd_ = -1;
  mutable bool bypasses_cache_ = false;  // how bytes travel, not what they are
  std::filesystem::path path_;
};

struct FreeBlocks {
  void operator()(std::byte* memory) const;
};
/// Memory that begins where a block of File::kDirectBlock may, for files that bypass the cache.
using BlockMemory = std::unique_ptr<std::byte[], FreeBlocks>;
BlockMemory make_block_memory(std::size_t bytes);

/// Whole file as bytes; DataError beyond `limit_bytes`.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit_bytes = ~0ull);

/// Replaces `path` atomically and durably: temporary file in the same folder, fsync, rename, fsync
/// of the folder. After a crash the old or the new content is there, never a mixture.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// fsync of a directory, which makes creations and renames inside it durable.
void sync_directory(const std::filesystem::path& path);

/// Free bytes for this user on the file system that holds `path` (or its nearest existing parent).
std::uint64_t free_disk_bytes(const std::filesystem::path& path);

/// Whether an errno says that a path leads nowhere, or may not be read, which is the user's to
/// mend; what else goes wrong is the storage's, and may be over in a moment.
bool is_of_the_path(int error);

}  // namespace llmtrain
