#pragma once
/// A file that lives as long as the process: what memory has no room for.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lib/base/file.hpp"

namespace llmtrain::offload {

/// Without a name, so that nothing is left of it however the process ends; where a file system
/// knows no such files the name goes right after its creation, and what a kill in between has left
/// goes with the next file there. Its blocks are the disk's from the beginning.
class ScratchFile {
 public:
  /// Offsets, sizes and addresses of what goes past the page cache are multiples of it.
  static constexpr std::uint64_t kAlignment = File::kDirectBlock;

  /// In `directory`, which is made if it is not there. StorageError when the disk has no `bytes`.
  ScratchFile(const std::filesystem::path& directory, std::uint64_t bytes);
  ~ScratchFile();
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile& operator=(ScratchFile&&) = delete;

  /// Takes blocks for `wanted` bytes in all, or where the disk has not as many, for `least`, and
  /// says for how many; StorageError when it has not as many either. What is there may be written
  /// meanwhile. A file system that hands out blocks only as they are written refuses them then.
  std::uint64_t grow(std::uint64_t least, std::uint64_t wanted);

  int descriptor() const { return fd_; }
  /// For messages.
  std::string name() const;
  /// Bytes go between memory and disk past the page cache.
  bool bypasses_cache() const { return bypasses_cache_; }
  /// Where the file system refuses that after all.
  void stop_bypassing();

  /// All of the bytes at `offset`, or a StorageError that names the file.
  void read(std::uint64_t offset, std::span<std::byte> to) const;
  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// StorageError for a request that ended so: a negative errno, or nothing read.
  [[noreturn]] void fail_at(bool is_write, std::uint64_t offset, std::int64_t result) const;

 private:
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  std::filesystem::path directory_;
  bool bypasses_cache_ = false;
};

}  // namespace llmtrain::offload
