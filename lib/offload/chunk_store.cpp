#include "lib/offload/chunk_store.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::offload {

namespace {

constexpr std::uint64_t kAlignment = ScratchFile::kAlignment;
constexpr std::size_t kBlockMutexes = 64;

bool is_aligned(std::uint64_t value) { return value % kAlignment == 0; }

}  // namespace

ChunkStore::ChunkStore(ScratchFile file, std::vector<Chunk> chunks, std::byte* pool, BlockName name,
                       const StoreOptions& options)
    : chunks_(std::move(chunks)),
      pool_(pool),
      name_(std::move(name)),
      checksums_(options.checksums),
      block_mutexes_(kBlockMutexes),
      disk_(std::move(file), options, "wait for optimizer states",
            {.finish = [this](std::uint64_t b, Lock& lock) { finish_block(blocks_[b], lock); },
             .begin =
                 [this](Lock& lock) {
                   start_stores(lock);
                   start_loads();
                 }}) {
  require(!chunks_.empty() && is_aligned(reinterpret_cast<std::uintptr_t>(pool)),
          "{} chunks in a pool that begins at {}", chunks_.size(), static_cast<void*>(pool));
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const Chunk& chunk = chunks_[c];
    require(chunk.bytes > 0 && is_aligned(chunk.bytes | chunk.file_offset | chunk.pool_offset),
            "chunk {} of {} bytes at {}, {} in memory", c, chunk.bytes, chunk.file_offset,
            chunk.pool_offset);
    State& state = states_.emplace_back();
    state.first_block = blocks_.size();
    for (std::uint64_t at = 0; at < chunk.bytes; at += kBlock) {
      blocks_.push_back({.chunk = c, .begin = at, .bytes = std::min(kBlock, chunk.bytes - at)});
    }
    state.num_blocks = blocks_.size() - state.first_block;
    for (std::size_t other = 0; other < chunks_.size(); ++other) {
      const Chunk& o = chunks_[other];
      if (o.pool_offset < chunk.pool_end() && chunk.pool_offset < o.pool_end()) {
        state.sharers.push_back(other);
      }
    }
  }
}

std::span<std::byte> ChunkStore::acquire(std::size_t chunk) {
  {
    const Lock lock = disk_.lock();
    if (!std::exchange(loads_ahead_, true)) disk_.wake();
  }
  return hold(chunk, Status::ready);
}

std::span<std::byte> ChunkStore::acquire_fresh(std::size_t chunk) {
  return hold(chunk, Status::on_disk);
}

std::span<std::byte> ChunkStore::hold(std::size_t chunk, Status when) {
  Lock lock = disk_.lock();
  disk_.check_failure();
  require(chunk == next_held_, "chunk {} instead of {}", chunk, next_held_);
  require(when == Status::ready || !loads_ahead_, "chunk {} is read already", chunk);
  disk_.await(lock, [&] {
    return when == Status::ready ? states_[chunk].status == when : memory_is_free(chunk);
  });
  states_[chunk].status = Status::held;
  return {pool_ + chunks_[chunk].pool_offset, chunks_[chunk].bytes};
}

void ChunkStore::release(std::size_t chunk) {
  const Lock lock = disk_.lock();
  disk_.check_failure();
  require(states_[chunk].status == Status::held, "chunk {} is released and not held", chunk);
  states_[chunk].status = Status::storing;
  next_held_ = (chunk + 1) % chunks_.size();
  to_store_.push_back(chunk);
  disk_.wake();
}

// Those with which it shares memory come before it in every pass or behind it in the last one, and
// chunks are read in their order: who is on disk has been there in this pass, if his turn is over.
bool ChunkStore::memory_is_free(std::size_t chunk) const {
  return std::ranges::all_of(states_[chunk].sharers, [&](std::size_t other) {
    return states_[other].status == Status::on_disk;
  });
}

std::span<std::byte> ChunkStore::memory_of(const Block& block) const {
  return {pool_ + chunks_[block.chunk].pool_offset + block.begin, block.bytes};
}

void ChunkStore::check_hash(const Block& block, std::span<const std::byte> bytes) const {
  if (!checksums_ || hash64(bytes) == block.hash) return;
  const std::uint64_t begin = chunks_[block.chunk].file_offset + block.begin;
  disk_.fail_changed(begin, begin + block.bytes,
                     name_(block.chunk, block.begin, block.begin + block.bytes));
}

// --- between passes

void ChunkStore::settle_stores(std::size_t begin, std::size_t end) {
  Lock lock = disk_.lock();
  disk_.await(lock, [&] {
    return std::all_of(states_.begin() + static_cast<std::ptrdiff_t>(begin),
                       states_.begin() + static_cast<std::ptrdiff_t>(end),
                       [](const State& state) { return state.status != Status::storing; });
  });
  require(next_held_ == 0, "chunks are read or written from outside within a pass");
}

// What was read ahead of the next pass is no longer what the file has.
void ChunkStore::forget_loads() {
  Lock lock = disk_.lock();
  loads_ahead_ = false;
  disk_.await(lock, [&] {
    return std::ranges::none_of(states_,
                                [](const State& state) { return state.status == Status::loading; });
  });
  for (State& state : states_) state.status = Status::on_disk;
  next_load_ = 0;
}

template <class Visit>
void ChunkStore::for_blocks(std::size_t chunk, std::uint64_t offset, std::uint64_t bytes,
                            const Visit& visit) {
  const std::uint64_t end = offset + bytes;
  require(end <= chunks_[chunk].bytes, "bytes {} to {} of a chunk of {}", offset, end,
          chunks_[chunk].bytes);
  for (std::uint64_t at = offset; at < end;) {
    Block& block = blocks_[states_[chunk].first_block + at / kBlock];
    const std::uint64_t here = std::min(end, block.begin + block.bytes) - at;
    visit(block, at - block.begin, at - offset, here);
    at += here;
  }
}

void ChunkStore::read_block(const Block& block, std::span<std::byte> to) {
  disk_.file().read(chunks_[block.chunk].file_offset + block.begin, to);
  check_hash(block, to);
}

void ChunkStore::read(std::size_t chunk, std::uint64_t offset, std::span<std::byte> to,
                      LastBlock& last) {
  settle_stores(chunk, chunk + 1);
  if (!last.memory_) last.memory_ = make_block_memory(kBlock);
  for_blocks(
      chunk, offset, to.size(),
      [&](const Block& block, std::uint64_t in_block, std::uint64_t at, std::uint64_t bytes) {
        const auto index = static_cast<std::size_t>(&block - blocks_.data());
        if (last.block_ != index) {
          last.block_ = ~std::size_t{0};  // until it is read
          read_block(block, {last.memory_.get(), block.bytes});
          last.block_ = index;
        }
        std::memcpy(to.data() + at, last.memory_.get() + in_block, bytes);
      });
}

void ChunkStore::write(std::size_t chunk, std::uint64_t offset, std::span<const std::byte> bytes) {
  settle_stores(0, chunks_.size());
  forget_loads();
  const BlockMemory memory = make_block_memory(kBlock);
  for_blocks(chunk, offset, bytes.size(),
             [&](Block& block, std::uint64_t in_block, std::uint64_t at, std::uint64_t size) {
               const std::span<std::byte> whole(memory.get(), block.bytes);
               const std::size_t index = static_cast<std::size_t>(&block - blocks_.data());
               const std::lock_guard lock(block_mutexes_[index % kBlockMutexes]);
               if (size < block.bytes) read_block(block, whole);
               std::memcpy(whole.data() + in_block, bytes.data() + at, size);
               if (checksums_) block.hash = hash64(whole);
               disk_.file().write(chunks_[chunk].file_offset + block.begin, whole);
             });
}

// --- the thread that talks to the disk

void ChunkStore::finish_block(Block& block, Lock& lock) {
  disk_.count(block.is_write, block.bytes);
  if (!block.is_write && checksums_) {
    lock.unlock();
    check_hash(block, memory_of(block));
    lock.lock();
  }
  State& state = states_[block.chunk];
  if (--state.blocks_left > 0) return;
  state.status = block.is_write ? Status::on_disk : Status::ready;
}

void ChunkStore::start_stores(Lock& lock) {
  while (!to_store_.empty()) {
    State& state = states_[to_store_.front()];
    to_store_.pop_front();
    state.blocks_left = state.num_blocks;
    for (std::size_t b = state.first_block; b < state.first_block + state.num_blocks; ++b) {
      Block& block = blocks_[b];
      if (checksums_) {
        lock.unlock();
        block.hash = hash64(memory_of(block));
        lock.lock();
      }
      block.is_write = true;
      request(b);
      disk_.submit();
    }
  }
}

void ChunkStore::start_loads() {
  while (loads_ahead_ && memory_is_free(next_load_)) {
    State& state = states_[next_load_];
    state.status = Status::loading;
    state.blocks_left = state.num_blocks;
    for (std::size_t b = state.first_block; b < state.first_block + state.num_blocks; ++b) {
      blocks_[b].is_write = false;
      request(b);
    }
    next_load_ = (next_load_ + 1) % chunks_.size();
  }
}

void ChunkStore::request(std::size_t block) {
  const Block& b = blocks_[block];
  disk_.add(block, b.is_write, chunks_[b.chunk].file_offset + b.begin, memory_of(b));
}

}  // namespace llmtrain::offload
