#pragma once
/// Data that lie in a file and pass through a pool of memory, a chunk at a time, again and again in
/// the same order: chunks behind the one that is worked on are read meanwhile, those before it
/// written back.
///
/// A chunk has a place of its own in the pool, which it shares with others; it is read when all of
/// these are written. So the pool bounds what is under way, and who is ahead of the disk waits.

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lib/offload/disk_worker.hpp"

namespace llmtrain::offload {

/// Bytes of the file that are in memory as a whole. All three are multiples of
/// ScratchFile::kAlignment.
struct Chunk {
  std::uint64_t file_offset = 0, pool_offset = 0, bytes = 0;
  std::uint64_t pool_end() const { return pool_offset + bytes; }
};

/// What bytes [begin, end) of a chunk are, for messages.
using BlockName =
    std::function<std::string(std::size_t chunk, std::uint64_t begin, std::uint64_t end)>;

class ChunkStore {
 public:
  /// Bytes that are read, written and hashed at a time.
  static constexpr std::uint64_t kBlock = 1 << 20;

  /// `pool` begins at a multiple of ScratchFile::kAlignment and outlives this, as its chunks, which
  /// lie in it, do.
  ChunkStore(ScratchFile file, std::vector<Chunk> chunks, std::byte* pool, BlockName name,
             const StoreOptions& options);

  /// Passes go through all chunks in their order. Each is acquired, its memory used, and released
  /// before the next one. StorageError, then and ever after, when a file fails or a block is not
  /// what was written there: the content is then that of no pass.
  std::span<std::byte> acquire(std::size_t chunk);
  /// In a first pass: memory of any content.
  std::span<std::byte> acquire_fresh(std::size_t chunk);
  /// What its memory holds is written back.
  void release(std::size_t chunk);

  /// The block that was read last, of reads that follow one another between two passes.
  class LastBlock {
    friend class ChunkStore;
    BlockMemory memory_;
    std::size_t block_ = ~std::size_t{0};
  };

  /// Between passes, by any thread: bytes [offset, offset + size) of a chunk, from the file.
  void read(std::size_t chunk, std::uint64_t offset, std::span<std::byte> to) {
    LastBlock last;
    read(chunk, offset, to, last);
  }
  void read(std::size_t chunk, std::uint64_t offset, std::span<std::byte> to, LastBlock& last);
  void write(std::size_t chunk, std::uint64_t offset, std::span<const std::byte> bytes);

  StoreTraffic traffic() const { return disk_.traffic(); }
  std::string how() const { return disk_.how(); }

 private:
  enum class Status : std::uint8_t { on_disk, loading, ready, held, storing };
  struct Block {
    std::size_t chunk = 0;
    std::uint64_t begin = 0, bytes = 0;  // in the chunk
    bool is_write = false;
    std::uint64_t hash = 0;
  };
  struct State {
    Status status = Status::on_disk;
    std::size_t first_block = 0, num_blocks = 0, blocks_left = 0;
    /// Chunks with which it shares memory, and itself.
    std::vector<std::size_t> sharers;
  };
  using Lock = DiskWorker::Lock;

  std::span<std::byte> hold(std::size_t chunk, Status when);
  bool memory_is_free(std::size_t chunk) const;
  std::span<std::byte> memory_of(const Block& block) const;
  void check_hash(const Block& block, std::span<const std::byte> bytes) const;
  /// Reads a block for somebody outside of passes.
  void read_block(const Block& block, std::span<std::byte> to);
  void settle_stores(std::size_t begin, std::size_t end);
  void forget_loads();
  template <class Visit>
  void for_blocks(std::size_t chunk, std::uint64_t offset, std::uint64_t bytes, const Visit& visit);

  // Of the thread that talks to the disk.
  void start_stores(Lock& lock);
  void start_loads();
  void finish_block(Block& block, Lock& lock);
  void request(std::size_t block);

  std::vector<Chunk> chunks_;
  std::byte* pool_;
  BlockName name_;
  bool checksums_;
  std::vector<State> states_;
  std::vector<Block> blocks_;

  bool loads_ahead_ = false;  // chunks are read before somebody asks for them
  std::size_t next_load_ = 0, next_held_ = 0;
  std::deque<std::size_t> to_store_;
  std::vector<std::mutex> block_mutexes_;  // of writes from outside
  DiskWorker disk_;  // requests by index of the block; its thread uses all of the above
};

}  // namespace llmtrain::offload
