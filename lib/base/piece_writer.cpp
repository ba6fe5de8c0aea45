#include "lib/base/piece_writer.hpp"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

namespace llmtrain {

PieceWriter::PieceWriter(const std::filesystem::path& path, std::size_t piece_bytes)
    : file_(File::create_new(path)),
      piece_bytes_((piece_bytes + File::kDirectBlock - 1) / File::kDirectBlock *
                   File::kDirectBlock) {
  if (piece_bytes_ == 0) return;
  filling_ = make_block_memory(piece_bytes_);
  writing_ = make_block_memory(piece_bytes_);
  file_.bypass_cache();
}

void PieceWriter::write(std::span<const std::byte> bytes) {
  if (piece_bytes_ == 0) return file_.write(bytes);
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), piece_bytes_ - filled_);
    std::memcpy(filling_.get() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == piece_bytes_) write_piece();
  }
}

void PieceWriter::wait() {
  if (written_.valid()) written_.get();
}

void PieceWriter::write_piece() {
  wait();
  std::swap(filling_, writing_);
  const std::span<const std::byte> bytes{writing_.get(), std::exchange(filled_, 0)};
  const auto write = [this, bytes] {
    // Whole blocks first: what is left of the last one goes through the cache.
    const std::size_t whole = bytes.size() / File::kDirectBlock * File::kDirectBlock;
    file_.write(bytes.first(whole));
    file_.write(bytes.subspan(whole));
  };
  try {
    written_ = std::async(std::launch::async, write);
  } catch (const std::system_error&) {  // no more threads: the writer waits for the disk instead
    write();
  }
}

void PieceWriter::sync() {
  if (piece_bytes_ > 0) write_piece();
  wait();
  file_.sync();
}

}  // namespace llmtrain
