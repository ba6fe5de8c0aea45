#pragma once
/// The copy of a checkpoint's boxes from which they are written while the run goes on: it lies as
/// their files will, so that a large file is written from it past the page cache and no processor
/// copies it again.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/checkpoint/shards.hpp"

namespace llmtrain::checkpoint {

/// Bytes of memory, wherever they begin, that have room for place_in_snapshot() of boxes of
/// `saved_bytes` in all: those and a block (File::kDirectBlock) for each file that max_shard_bytes
/// may make of them.
std::uint64_t snapshot_bytes(std::uint64_t saved_bytes, std::uint64_t max_shard_bytes);

/// A place for each box in `memory`, of snapshot_bytes(): behind each other in the order of the
/// file of divide_into_shards(), the first of each file at a block's beginning (or, where
/// kMaxTensorsPerFile makes more files than there is room for, anywhere).
std::vector<std::span<std::byte>> place_in_snapshot(std::span<const TensorBox> boxes,
                                                    std::uint64_t max_shard_bytes,
                                                    std::span<std::byte> memory);

}  // namespace llmtrain::checkpoint
