#include "lib/base/piece_writer.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "lib/base/activity.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

PieceWriter::PieceWriter(const std::filesystem::path& path, Pieces pieces)
    : file_(File::create_new(path)), pieces_(std::move(pieces)) {
  if (pieces_.bytes == 0) return;
  pieces_.bytes =
      (pieces_.bytes + File::kDirectBlock - 1) / File::kDirectBlock * File::kDirectBlock;
  filling_ = make_block_memory(pieces_.bytes);
  writing_ = make_block_memory(pieces_.bytes);
  if (pieces_.past_cache) file_.bypass_cache();
}

void PieceWriter::write(std::span<const std::byte> bytes) {
  if (pieces_.bytes == 0) return file_.write(bytes);
  end_kept();
  copy(bytes);
}

void PieceWriter::write_kept(std::span<const std::byte> bytes) {
  if (pieces_.bytes == 0) return file_.write(bytes);
  if (bytes.empty()) return;
  if (kept_.empty() || kept_.data() + kept_.size() != bytes.data()) {
    end_kept();
    const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
    if ((filled_ | address) % File::kDirectBlock != 0) return copy(bytes);
    if (filled_ > 0) write_piece();
    kept_ = bytes.first(0);
  }
  kept_ = {kept_.data(), kept_.size() + bytes.size()};
  const std::size_t most = kKeptPieces * pieces_.bytes;
  while (kept_.size() >= most) {
    submit(kept_.first(most));
    kept_ = kept_.subspan(most);
  }
}

void PieceWriter::end_kept() {
  const std::span<const std::byte> kept = std::exchange(kept_, {});
  const std::size_t whole = kept.size() / File::kDirectBlock * File::kDirectBlock;
  if (whole > 0) submit(kept.first(whole));
  copy(kept.subspan(whole));
}

void PieceWriter::copy(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), pieces_.bytes - filled_);
    std::memcpy(filling_.get() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == pieces_.bytes) write_piece();
  }
}

void PieceWriter::wait() {
  if (written_.valid()) written_.get();
}

void PieceWriter::write_piece() {
  wait();  // for what it is written from
  std::swap(filling_, writing_);
  submit({writing_.get(), std::exchange(filled_, 0)});
}

void PieceWriter::submit(std::span<const std::byte> run) {
  wait();
  activity::tick();  // of the thread whose file it is
  const auto write = [this, run, ticks = activity::counted_in()] {
    const activity::CountedThread counted(ticks);
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t at = 0; at < run.size(); at += pieces_.bytes) {
      require<StorageError>(!pieces_.stop.stop_requested(), "{}: given up", file_.path().string());
      write_one(run.subspan(at, std::min(pieces_.bytes, run.size() - at)));  // a sign of life each
    }
    if (pieces_.written) pieces_.written(std::chrono::steady_clock::now() - begin);
  };
  try {
    written_ = std::async(std::launch::async, write);
  } catch (const std::system_error&) {  // no more threads: the writer waits for the disk instead
    write();
  }
}

void PieceWriter::write_one(std::span<const std::byte> piece) {
  // Whole blocks first: what is left of the last one goes through the cache.
  const std::size_t whole = piece.size() / File::kDirectBlock * File::kDirectBlock;
  file_.write(piece.first(whole));
  file_.write(piece.subspan(whole));
  if (!pieces_.past_cache) send(piece.size());
}

void PieceWriter::send(std::size_t bytes) {
  file_.start_write_back(sent_, bytes);
  sent_ += bytes;
  const std::uint64_t window = kWindow * pieces_.bytes;
  if (sent_ - dropped_ <= window) return;
  const std::uint64_t end = sent_ - window;
  file_.finish_write_back(dropped_, end - dropped_);
  dropped_ = end;
}

void PieceWriter::sync() {
  end_kept();
  if (filled_ > 0) write_piece();
  wait();
  file_.sync();
  if (sent_ > dropped_) file_.finish_write_back(dropped_, sent_ - std::exchange(dropped_, sent_));
}

}  // namespace llmtrain
