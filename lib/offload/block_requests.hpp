#pragma once
/// Blocks of a file that are to be read or written as a whole.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "lib/offload/disk_queue.hpp"
#include "lib/offload/scratch_file.hpp"

namespace llmtrain::offload {

/// What a disk does only in part, refuses to do past the page cache, or is interrupted in, is asked
/// for again. Not for several threads at a time; only the queue's own wait() may go on beside.
class BlockRequests {
 public:
  /// Most of them that the disk has to do at a time.
  static constexpr unsigned kDepth = 32;
  /// DiskCompletion of wake().
  static constexpr std::uint64_t kWake = ~std::uint64_t{0};

  BlockRequests(ScratchFile& file, std::unique_ptr<DiskQueue> queue)
      : file_(&file), queue_(std::move(queue)) {}

  /// A block, by a number that no other under way has. Begins with submit().
  void add(std::uint64_t id, bool is_write, std::uint64_t offset, std::span<std::byte> memory);
  /// Begins as many as the queue has room for.
  void submit();
  /// Of what wait() gave: the number of the block that is there now, if one is. StorageError when
  /// the file fails.
  std::optional<std::uint64_t> complete(const DiskCompletion& completion);
  /// Makes wait() give kWake, however often before it does.
  void wake();

  DiskCompletion wait() { return queue_->wait(); }
  bool none_under_way() const { return in_flight_ == 0; }
  std::string_view queue_name() const { return queue_->name(); }

 private:
  struct Block {
    bool is_write = false;
    bool was_refused = false;  // past the page cache
    std::uint64_t offset = 0, done = 0;
    std::span<std::byte> memory;
  };
  ScratchFile* file_;
  std::unique_ptr<DiskQueue> queue_;
  std::map<std::uint64_t, Block> blocks_;
  std::deque<std::uint64_t> pending_;
  unsigned in_flight_ = 0;
  bool wake_is_due_ = false;
};

}  // namespace llmtrain::offload
