#pragma once
/// Large files that are written once, from their beginning to their end.

#include <cstddef>
#include <filesystem>
#include <future>
#include <span>
#include <string_view>

#include "lib/base/file.hpp"

namespace llmtrain {

/// Collects what is written in a piece of memory, which goes to the file, past the page cache
/// (File::bypass_cache), while the next one fills: disks get large requests, nobody waits for them
/// without need, the processor has little to do with it, and what others keep in the page cache
/// stays there. Errors as those of File, of a write at a later call, at the latest in sync();
/// nothing is written again after one.
class PieceWriter {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
  /// Creates the file, as File::create_new(). `piece_bytes`, of each of two pieces, is rounded up
  /// to whole blocks (File::kDirectBlock); with 0 there are none: what is written goes to the file
  /// at once, through the cache.
  explicit PieceWriter(const std::filesystem::path& path, std::size_t piece_bytes = kPieceBytes);

  PieceWriter(const PieceWriter&) = delete;  // a piece that is being written knows where it is
  PieceWriter& operator=(const PieceWriter&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Writes the last piece, as long as it is, and has all of it on the disk (fsync).
  void sync();
  /// After sync().
  void close() { file_.close(); }

 private:
  /// Waits for the piece that is being written, and throws what it met.
  void wait();
  void write_piece();

  File file_;
  std::size_t piece_bytes_;
  BlockMemory filling_;
  std::size_t filled_ = 0;
  BlockMemory writing_;
  std::future<void> written_;  // last: it is waited for before what it uses goes
};

}  // namespace llmtrain
