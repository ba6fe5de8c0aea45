#pragma once
/// Values that are put away into a file until somebody takes them back, each once.
///
/// They pass through a pool of memory, a block at a time. What is put away stays there as long as
/// there is room, so that it may not have to be read again; what is taken soon is read ahead. The
/// pool bounds what is not yet written: who is ahead of the disk waits.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/offload/disk_worker.hpp"

namespace llmtrain::offload {

class ValueStore {
 public:
  /// Values begin at one of their own, in the pool and in the file.
  static constexpr std::uint64_t kBlock = 1 << 18;
  static constexpr std::uint64_t blocks_of(std::uint64_t bytes) {
    return (bytes + kBlock - 1) / kBlock;
  }
  /// Numbers of values, in the order in which they were put away; 0 is none.
  using Id = std::uint64_t;

  /// `pool` begins at a multiple of ScratchFile::kAlignment, has room for four blocks or more, and
  /// outlives this. The file grows by what is put away.
  ValueStore(ScratchFile file, std::span<std::byte> pool, const StoreOptions& options);

  /// Copies a part of a value, which begins at `offset` of it, to or from the pool, and is done
  /// when it returns.
  using CopyIn = std::function<void(std::span<std::byte> part, std::uint64_t offset)>;
  using CopyOut = std::function<void(std::span<const std::byte> part, std::uint64_t offset)>;

  /// One thread puts away, takes and drops. All throw a StorageError, then and ever after, when the
  /// file fails or a block is not what was written there.
  /// A value of so many bytes, which is called `name` in messages. `before` is read ahead when this
  /// value is taken, and so is what comes before that one.
  Id put(std::uint64_t bytes, std::string name, Id before, const CopyIn& copy);
  Id put(std::span<const std::byte> bytes, std::string name, Id before);
  /// Copies the value to where there is place for it, and keeps it no longer.
  void take(Id value, const CopyOut& copy);
  void take(Id value, std::span<std::byte> to);
  /// Of a value that nobody takes; no error.
  void drop(Id value) noexcept;

  StoreTraffic traffic() const { return disk_.traffic(); }
  std::string how() const { return disk_.how(); }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Piece {
    std::size_t file_block = kNone, pool_block = kNone;
    std::uint64_t hash = 0;
  };
  struct Value {
    std::uint64_t bytes = 0;
    std::string name;
    Id before = 0;
    std::vector<Piece> pieces;
  };
  enum class Status : std::uint8_t { free, writing, reading, ready };
  struct PoolBlock {
    Status status = Status::free;
    bool is_wanted = false;  // is taken soon: nobody else may have its place
    Id value = 0;            // 0: of one that is gone
    std::size_t piece = 0, file_block = kNone;
    std::uint64_t bytes = 0;
  };
  using Lock = DiskWorker::Lock;

  Piece& piece_of(const PoolBlock& block) { return values_.at(block.value).pieces[block.piece]; }
  std::span<std::byte> memory_of(std::size_t pool_block) const;
  std::size_t take_file_block();
  /// A place in the pool that is free, or whose content the file has and nobody wants soon; kNone
  /// if there is none now.
  std::size_t find_pool_block();
  std::size_t await_pool_block(Lock& lock);
  void occupy(std::size_t pool_block, Status status, Id id, std::size_t piece);
  void begin_read(std::size_t pool_block, Id id, std::size_t piece);
  /// Of this value, and then of those before it, as much as half of the pool holds.
  void read_ahead(Id id);
  void set_wanted(PoolBlock& block, bool wanted);
  /// Of a piece that nobody takes any more: its places are free, now or when the disk has done with
  /// them.
  void let_go(const Piece& piece);
  void free(std::size_t pool_block);

  // Of the thread that talks to the disk.
  void start_writes(Lock& lock);
  void finish(std::size_t pool_block, Lock& lock);

  std::span<std::byte> pool_;
  bool checksums_;
  std::map<Id, Value> values_;
  Id next_id_ = 1;
  std::vector<PoolBlock> blocks_;
  std::vector<std::size_t> free_blocks_;               // of the pool
  std::set<std::pair<Id, std::size_t>> ready_blocks_;  // not wanted
  std::size_t num_wanted_ = 0;
  std::vector<std::size_t> free_file_blocks_;
  std::size_t file_blocks_ = 0, file_capacity_ = 0;
  std::deque<std::size_t> to_write_;
  DiskWorker disk_;  // requests by block of the pool; its thread uses all of the above
};

}  // namespace llmtrain::offload
