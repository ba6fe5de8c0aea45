#pragma once
/// How much of its file a ValueStore needs, by calls alone: for a plan, which has no file.

#include <algorithm>
#include <cstdint>

#include "lib/offload/value_store.hpp"

namespace llmtrain::offload {

class ValueFileUse {
 public:
  void put(std::uint64_t bytes) {
    put_bytes_ += bytes;
    put_blocks_ += ValueStore::blocks_of(bytes);
    blocks_ += ValueStore::blocks_of(bytes);
    most_blocks_ = std::max(most_blocks_, blocks_);
  }
  /// Of a value that was taken or dropped.
  void gone(std::uint64_t bytes) { blocks_ -= ValueStore::blocks_of(bytes); }

  /// All values that were put away.
  std::uint64_t put_bytes() const { return put_bytes_; }
  /// Most of the file that can ever be in use, if steps are as this one: by values at a time, and
  /// by those that were taken from the pool, in this step or the one before, while the disk had
  /// not written them.
  std::uint64_t most_file_bytes(std::uint64_t pool_bytes) const {
    return (most_blocks_ + std::min(pool_bytes / ValueStore::kBlock, put_blocks_)) *
           ValueStore::kBlock;
  }

 private:
  std::uint64_t blocks_ = 0, most_blocks_ = 0, put_blocks_ = 0, put_bytes_ = 0;
};

}  // namespace llmtrain::offload
