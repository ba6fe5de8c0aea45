#pragma once
/// Writing safetensors files: streaming, hashed while written, never over an existing file.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/hash.hpp"
#include "lib/base/piece_writer.hpp"
#include "lib/checkpoint/safetensors.hpp"

namespace llmtrain::checkpoint {

/// What identifies the content of a written file.
struct FileRecord {
  std::uint64_t bytes = 0;
  Hash128 xxh3_128;
  bool operator==(const FileRecord&) const = default;
};

struct TensorSpec {
  std::string name;
  StoredType type = StoredType::f32;
  Dims shape;
};

/// Indices of `tensors` in the order of the reference writer: descending alignment rank, then name.
std::vector<std::size_t> file_order(std::span<const TensorSpec> tensors);

/// What a file has in front of its data, and where that lies.
struct SafetensorsHead {
  std::string text;                       // the header's length and the header, padded with spaces
  std::vector<SafetensorsEntry> entries;  // in file order, with their place in the file
  std::uint64_t file_bytes = 0;
};

/// Of the data of any file.
constexpr std::size_t kLeastAlignment = 8;

/// For data that begins at a multiple of `alignment`, itself a multiple of the least.
/// CheckpointError, with the name of the file, for names, shapes or duplicates that the reader
/// would refuse.
SafetensorsHead make_head(std::span<const TensorSpec> tensors, const Metadata& metadata,
                          std::size_t alignment, const std::string& file);

/// One new file. Call write() for the tensors in `entries()` order, then sync() and close(). An
/// unfinished file stays behind on destruction; whoever made its folder removes it.
class SafetensorsWriter {
 public:
  /// Creates the file (StorageError if it exists) and writes the head; CheckpointError as
  /// make_head(), with data at a multiple of 8.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorSpec> tensors,
                    const Metadata& metadata, Pieces pieces = {});
  /// The same of a head that is made. `hash` is that of the whole file where somebody has it
  /// already; without one, it is made of what is written.
  SafetensorsWriter(const std::filesystem::path& path, SafetensorsHead head, Pieces pieces,
                    const std::optional<Hash128>& hash = {});

  /// The tensors in file order, with their place in the file.
  const std::vector<SafetensorsEntry>& entries() const { return head_.entries; }
  /// Appends bytes of the data; a tensor may come in pieces.
  void write(std::span<const std::byte> bytes);
  /// The same of bytes that stay where and as they are until sync() (PieceWriter::write_kept).
  void write_kept(std::span<const std::byte> bytes);
  /// fsync; demands that every tensor has been written. A failure is never retried.
  void sync();
  /// Closes the file, after sync().
  FileRecord close();

 private:
  void account(std::span<const std::byte> bytes);

  PieceWriter file_;
  SafetensorsHead head_;
  std::optional<Hash128> hash_;
  Hasher128 hasher_;  // without hash_
  std::uint64_t written_bytes_ = 0;
};

struct TensorBytes {
  TensorSpec spec;
  std::span<const std::byte> bytes;  // row-major, exactly the tensor's size
};

/// Writes a whole file durably and returns its record.
FileRecord write_safetensors(const std::filesystem::path& path,
                             std::span<const TensorBytes> tensors,
                             const Metadata& metadata = {{"format", "pt"}});

}  // namespace llmtrain::checkpoint
