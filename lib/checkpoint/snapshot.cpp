#include "lib/checkpoint/snapshot.hpp"

#include <algorithm>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::checkpoint {

std::uint64_t snapshot_bytes(std::uint64_t saved_bytes, std::uint64_t max_shard_bytes) {
  if (saved_bytes == 0) return 0;
  // A file and the next one have more than max_shard_bytes together.
  const std::uint64_t pairs = (saved_bytes - 1) / std::max<std::uint64_t>(max_shard_bytes, 1);
  return saved_bytes + (2 * pairs + 1) * File::kDirectBlock;
}

std::vector<std::span<std::byte>> place_in_snapshot(std::span<const TensorBox> boxes,
                                                    std::uint64_t max_shard_bytes,
                                                    std::span<std::byte> memory) {
  std::vector<std::span<std::byte>> places(boxes.size());
  std::uint64_t left = 0;
  for (const TensorBox& box : boxes) left += box.size_bytes();
  require(left <= memory.size(), "a snapshot of {} bytes in {}", left, memory.size());
  for (const ShardBoxes& shard : divide_into_shards(boxes, max_shard_bytes)) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t before = -address % File::kDirectBlock;
    // Only kMaxTensorsPerFile ends files so early that there may be no room: then it is copied.
    if (before + left <= memory.size()) memory = memory.subspan(before);
    for (const std::size_t i : shard.order) {
      const std::uint64_t bytes = boxes[shard.begin + i].size_bytes();
      places[shard.begin + i] = memory.first(bytes);
      memory = memory.subspan(bytes);
      left -= bytes;
    }
  }
  return places;
}

}  // namespace llmtrain::checkpoint
