#pragma once
/// Large files that are written once, from their beginning to their end.

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <span>
#include <string_view>

#include "lib/base/file.hpp"

namespace llmtrain {

/// How a PieceWriter writes.
struct Pieces {
  /// Of each of two pieces, rounded up to whole blocks (File::kDirectBlock); with 0 there are none:
  /// what is written goes to the file at once, through the cache.
  std::size_t bytes = std::size_t{4} << 20;
  /// Called behind each piece, by the thread that wrote it, with the time that took; the next piece
  /// is written when it has returned.
  std::function<void(std::chrono::steady_clock::duration)> written = {};
};

/// Collects what is written in a piece of memory, which goes to the file, past the page cache
/// (File::bypass_cache), while the next one fills: disks get large requests, nobody waits for them
/// without need, the processor has little to do with it, and what others keep in the page cache
/// stays there. Errors as those of File, of a write at a later call, at the latest in sync();
/// nothing is written again after one.
class PieceWriter {
 public:
  /// Creates the file, as File::create_new().
  explicit PieceWriter(const std::filesystem::path& path, Pieces pieces = {});

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
  Pieces pieces_;
  BlockMemory filling_;
  std::size_t filled_ = 0;
  BlockMemory writing_;
  std::future<void> written_;  // last: it is waited for before what it uses goes
};

}  // namespace llmtrain
