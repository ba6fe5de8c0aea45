#include "lib/offload/value_store.hpp"

#include <algorithm>
#include <cstring>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::offload {

namespace {

constexpr std::uint64_t kAlignment = ScratchFile::kAlignment;
constexpr std::size_t kLeastGrowth = 64;  // blocks

}  // namespace

ValueStore::ValueStore(ScratchFile file, std::span<std::byte> pool, const StoreOptions& options)
    : pool_(pool),
      checksums_(options.checksums),
      blocks_(pool.size() / kBlock),
      disk_(std::move(file), options, "wait for activations",
            {.finish = [this](std::uint64_t block, Lock& lock) { finish(block, lock); },
             .begin = [this](Lock& lock) { start_writes(lock); }}) {
  require(reinterpret_cast<std::uintptr_t>(pool.data()) % kAlignment == 0 && blocks_.size() >= 4,
          "a pool of {} bytes at {}", pool.size(), static_cast<void*>(pool.data()));
  for (std::size_t b = blocks_.size(); b-- > 0;) free_blocks_.push_back(b);
}

// What goes past the page cache is whole blocks of the disk.
std::span<std::byte> ValueStore::memory_of(std::size_t pool_block) const {
  const std::uint64_t bytes =
      (blocks_[pool_block].bytes + kAlignment - 1) / kAlignment * kAlignment;
  return pool_.subspan(pool_block * kBlock, bytes);
}

ValueStore::Id ValueStore::put(std::span<const std::byte> bytes, std::string name, Id before) {
  return put(bytes.size(), std::move(name), before,
             [bytes](std::span<std::byte> part, std::uint64_t offset) {
               std::memcpy(part.data(), bytes.data() + offset, part.size());
             });
}

ValueStore::Id ValueStore::put(std::uint64_t bytes, std::string name, Id before,
                               const CopyIn& copy) {
  Lock lock = disk_.lock();
  disk_.check_failure();
  const Id id = next_id_++;
  Value& value = values_[id];
  value = {.bytes = bytes, .name = std::move(name), .before = before, .pieces = {}};
  value.pieces.resize(blocks_of(bytes));
  for (std::size_t i = 0; i < value.pieces.size(); ++i) {
    value.pieces[i].file_block = take_file_block();
    const std::size_t block = await_pool_block(lock);
    occupy(block, Status::writing, id, i);
    lock.unlock();
    const std::uint64_t size = blocks_[block].bytes;
    const std::span<std::byte> memory = memory_of(block);
    copy(memory.first(size), i * kBlock);
    std::memset(memory.data() + size, 0, memory.size() - size);
    lock.lock();
    to_write_.push_back(block);
    disk_.wake();
  }
  return id;
}

void ValueStore::take(Id id, std::span<std::byte> to) {
  take(id, [to](std::span<const std::byte> part, std::uint64_t offset) {
    require(offset + part.size() <= to.size(), "a value of more than {} bytes", to.size());
    std::memcpy(to.data() + offset, part.data(), part.size());
  });
}

void ValueStore::take(Id id, const CopyOut& copy) {
  Lock lock = disk_.lock();
  Value& value = values_.at(id);
  for (std::size_t i = 0; i < value.pieces.size(); ++i) {
    read_ahead(id);
    Piece& piece = value.pieces[i];
    if (piece.pool_block == kNone) begin_read(await_pool_block(lock), id, i);
    const PoolBlock& block = blocks_[piece.pool_block];
    disk_.await(lock, [&] { return block.status != Status::reading; });
    lock.unlock();
    copy(memory_of(piece.pool_block).first(block.bytes), i * kBlock);
    lock.lock();
    let_go(piece);
    piece = {};
  }
  const Id before = value.before;
  values_.erase(id);
  read_ahead(before);
}

void ValueStore::drop(Id id) noexcept {
  const Lock lock = disk_.lock();
  const auto found = values_.find(id);
  if (found == values_.end()) return;
  for (const Piece& piece : found->second.pieces) let_go(piece);
  values_.erase(found);
}

std::size_t ValueStore::take_file_block() {
  if (!free_file_blocks_.empty()) {
    const std::size_t block = free_file_blocks_.back();
    free_file_blocks_.pop_back();
    return block;
  }
  if (file_blocks_ == file_capacity_) {
    const std::size_t wanted = file_capacity_ + std::max(kLeastGrowth, file_capacity_ / 8);
    file_capacity_ = disk_.grow((file_capacity_ + 1) * kBlock, wanted * kBlock) / kBlock;
  }
  return file_blocks_++;
}

// The value that was put away first is taken last, as far as a tape is one of several.
std::size_t ValueStore::find_pool_block() {
  if (!free_blocks_.empty()) {
    const std::size_t block = free_blocks_.back();
    free_blocks_.pop_back();
    return block;
  }
  if (ready_blocks_.empty()) return kNone;
  const std::size_t block = ready_blocks_.begin()->second;
  ready_blocks_.erase(ready_blocks_.begin());
  piece_of(blocks_[block]).pool_block = kNone;
  return block;
}

std::size_t ValueStore::await_pool_block(Lock& lock) {
  std::size_t block = kNone;
  disk_.await(lock, [&] {
    block = find_pool_block();
    return block != kNone;
  });
  return block;
}

void ValueStore::occupy(std::size_t block, Status status, Id id, std::size_t piece) {
  Value& value = values_.at(id);
  blocks_[block] = {.status = status,
                    .value = id,
                    .piece = piece,
                    .file_block = value.pieces[piece].file_block,
                    .bytes = std::min(kBlock, value.bytes - piece * kBlock)};
  value.pieces[piece].pool_block = block;
}

void ValueStore::begin_read(std::size_t block, Id id, std::size_t piece) {
  occupy(block, Status::reading, id, piece);
  disk_.add(block, false, blocks_[block].file_block * kBlock, memory_of(block));
  disk_.wake();
}

void ValueStore::set_wanted(PoolBlock& block, bool wanted) {
  if (block.is_wanted == wanted) return;
  block.is_wanted = wanted;
  num_wanted_ += wanted ? 1 : -1;
  if (block.status != Status::ready) return;
  const std::pair entry(block.value, static_cast<std::size_t>(&block - blocks_.data()));
  if (wanted) {
    ready_blocks_.erase(entry);
  } else {
    ready_blocks_.insert(entry);
  }
}

void ValueStore::read_ahead(Id id) {
  for (auto at = values_.find(id); at != values_.end(); at = values_.find(at->second.before)) {
    Value& value = at->second;
    for (std::size_t i = 0; i < value.pieces.size(); ++i) {
      if (num_wanted_ >= blocks_.size() / 2) return;
      Piece& piece = value.pieces[i];
      if (piece.file_block == kNone) continue;  // was taken
      if (piece.pool_block == kNone) {
        const std::size_t block = find_pool_block();
        if (block == kNone) return;
        begin_read(block, at->first, i);
      }
      set_wanted(blocks_[piece.pool_block], true);
    }
  }
}

void ValueStore::let_go(const Piece& piece) {
  if (piece.pool_block == kNone) {
    if (piece.file_block != kNone) free_file_blocks_.push_back(piece.file_block);
    return;
  }
  PoolBlock& block = blocks_[piece.pool_block];
  set_wanted(block, false);
  if (block.status == Status::ready) {
    ready_blocks_.erase({block.value, piece.pool_block});
    free(piece.pool_block);
  }
  block.value = 0;
}

void ValueStore::free(std::size_t block) {
  free_file_blocks_.push_back(blocks_[block].file_block);
  blocks_[block] = {};
  free_blocks_.push_back(block);
}

// --- the thread that talks to the disk

void ValueStore::start_writes(Lock& lock) {
  while (!to_write_.empty()) {
    const std::size_t index = to_write_.front();
    to_write_.pop_front();
    PoolBlock& block = blocks_[index];
    if (checksums_ && block.value != 0) {
      lock.unlock();
      const std::uint64_t hash = hash64(memory_of(index));
      lock.lock();
      if (block.value != 0) piece_of(block).hash = hash;
    }
    if (block.value == 0) {  // it was taken before it was written
      free(index);
      continue;
    }
    disk_.add(index, true, block.file_block * kBlock, memory_of(index));
    disk_.submit();
  }
}

void ValueStore::finish(std::size_t index, Lock& lock) {
  PoolBlock& block = blocks_[index];
  const bool was_read = block.status == Status::reading;
  disk_.count(!was_read, block.bytes);
  if (was_read && checksums_ && block.value != 0) {
    const std::uint64_t expected = piece_of(block).hash;
    const std::string name = values_.at(block.value).name;
    lock.unlock();
    const std::uint64_t hash = hash64(memory_of(index));
    lock.lock();
    if (hash != expected) {
      const std::uint64_t begin = block.file_block * kBlock;
      disk_.fail_changed(begin, begin + block.bytes, name);
    }
  }
  if (block.value == 0) return free(index);
  block.status = Status::ready;
  if (!block.is_wanted) ready_blocks_.insert({block.value, index});
}

}  // namespace llmtrain::offload
