#pragma once
/// The text of compressed source files, read like that of plain ones.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lib/base/file.hpp"
#include "lib/data/decompress.hpp"

namespace llmtrain::data {

/// A compressed file as it lies on the disk.
struct CompressedFile {
  std::filesystem::path path;
  Compression compression = Compression::none;
  std::uint64_t stored_bytes = 0;
  std::int64_t mtime_ns = 0;
};

/// Decompresses a file when it is read, into a temporary file without a name, and keeps the last
/// one only: the disk holds one decompressed file at a time, and none after the program, however it
/// ends. For one thread.
class DecompressedTexts {
 public:
  /// Temporary files and sizes go to `directory` (made when needed); empty: the system's directory
  /// for temporary files, and sizes are not kept.
  DecompressedTexts(std::filesystem::path directory, const DecompressLimits& limits)
      : directory_(std::move(directory)), limits_(limits) {}

  /// Bytes of the text. Found by decompressing once; kept in a small file under a hash of path,
  /// size and time, so that a later start need not. DataError as `decompress`.
  std::uint64_t size(const CompressedFile& file);

  /// The text, of `size(file)` bytes. DataError as `decompress`, and when the size is another than
  /// before; StorageError when the temporary file cannot be written.
  std::shared_ptr<const File> open(const CompressedFile& file);

 private:
  std::uint64_t decompress_to(const CompressedFile& file,
                              const std::function<void(std::span<const std::byte>)>& sink) const;
  /// Where the size is kept; empty if it is not.
  std::filesystem::path size_record(const CompressedFile& file) const;

  std::filesystem::path directory_;
  DecompressLimits limits_;
  std::filesystem::path open_path_;
  std::shared_ptr<const File> open_;
};

}  // namespace llmtrain::data
