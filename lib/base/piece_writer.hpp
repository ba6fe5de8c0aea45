#pragma once
/// Large files that are written once, from their beginning to their end.

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <span>
#include <stop_token>
#include <string_view>

#include "lib/base/file.hpp"

namespace llmtrain {

/// How a PieceWriter writes.
struct Pieces {
  /// Of each of two pieces, rounded up to whole blocks (File::kDirectBlock); with 0 there are none:
  /// what is written goes to the file at once, through the cache.
  std::size_t bytes = std::size_t{4} << 20;
  /// Past the page cache (File::bypass_cache), which leaves the processor alone; or through it, a
  /// piece on its way to the disk as soon as it is there, and out of the cache when others have
  /// followed it: disks of virtual machines take twice as much so.
  bool past_cache = true;
  /// Called behind each piece, or each run of pieces out of kept bytes, by the thread that wrote
  /// it, with the time that took; the next one is written when it has returned.
  std::function<void(std::chrono::steady_clock::duration)> written = {};
  /// Once it is requested no further piece is written: StorageError.
  std::stop_token stop = {};
};

/// Collects what is written in a piece of memory, which goes to the file while the next one fills:
/// disks get large requests, nobody waits for them without need, and what others keep in the page
/// cache stays there. Errors as those of File, of a write at a later call, at the latest in sync();
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
  /// As write(), of bytes that stay where and as they are until sync(). Those that begin with a
  /// block in memory as in the file, and what comes next and lies behind them, are written from
  /// there.
  void write_kept(std::span<const std::byte> bytes);
  /// Writes the last piece, as long as it is, and has all of it on the disk (fsync).
  void sync();
  /// After sync().
  void close() { file_.close(); }

 private:
  /// Waits for the piece that is being written, and throws what it met.
  void wait();
  void write_piece();
  /// Has a run of pieces written by a thread, whole blocks but for the last of the file.
  void submit(std::span<const std::byte> run);
  void write_one(std::span<const std::byte> piece);
  void copy(std::span<const std::byte> bytes);
  /// What is kept comes before all that follows.
  void end_kept();
  /// The latest `bytes` bytes begin their way to the disk; what is kWindow pieces back has ended
  /// it.
  void send(std::size_t bytes);

  /// Of a run out of kept bytes, which takes no memory: where all processors are at work each
  /// hand-over to the thread that writes waits for one.
  static constexpr std::size_t kKeptPieces = 8;
  /// Pieces that the page cache may have.
  static constexpr std::uint64_t kWindow = 8;

  File file_;
  Pieces pieces_;
  BlockMemory filling_;
  std::size_t filled_ = 0;
  BlockMemory writing_;
  std::span<const std::byte> kept_;       // not written yet, while nothing fills
  std::uint64_t sent_ = 0, dropped_ = 0;  // bytes from the beginning
  std::future<void> written_;             // last: it is waited for before what it uses goes
};

}  // namespace llmtrain
