#include "lib/base/piece_writer.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "lib/base/activity.hpp"

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
  wait();
  activity::tick();  // of the thread whose file it is
  std::swap(filling_, writing_);
  const std::span<const std::byte> bytes{writing_.get(), std::exchange(filled_, 0)};
  const auto write = [this, bytes, ticks = activity::counted_in()] {
    const activity::CountedThread counted(ticks);
    const auto begin = std::chrono::steady_clock::now();
    // Whole blocks first: what is left of the last one goes through the cache.
    const std::size_t whole = bytes.size() / File::kDirectBlock * File::kDirectBlock;
    file_.write(bytes.first(whole));
    file_.write(bytes.subspan(whole));
    if (!pieces_.past_cache) send(bytes.size());
    if (pieces_.written) pieces_.written(std::chrono::steady_clock::now() - begin);
  };
  try {
    written_ = std::async(std::launch::async, write);
  } catch (const std::system_error&) {  // no more threads: the writer waits for the disk instead
    write();
  }
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
  if (pieces_.bytes > 0) write_piece();
  wait();
  file_.sync();
  if (sent_ > dropped_) file_.finish_write_back(dropped_, sent_ - std::exchange(dropped_, sent_));
}

}  // namespace llmtrain
