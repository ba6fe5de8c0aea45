#pragma once
/// Writing boxes of logical tensors into safetensors shards of one checkpoint.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/checkpoint/manifest.hpp"
#include "lib/checkpoint/write_pace.hpp"

namespace llmtrain::checkpoint {

/// Called with the name of each point of the write protocol before the step it names; a test throws
/// or kills the process there. Empty in production.
using Failpoint = std::function<void(std::string_view point)>;

/// Storage from which a save reads what it saves has failed (TensorBox::fetch), not that which
/// takes the save.
class SourceFailed : public StorageError {
  using StorageError::StorageError;
};

/// One box of a logical tensor with its values.
struct TensorBox {
  std::string name;
  DType dtype = DType::f32;
  Dims global_shape;
  Box box;
  /// Of the box, row-major without gaps; read until the save returns.
  std::span<const std::byte> bytes;
  /// In place of `bytes` where they lie in a device's memory: copies those from `first` on into
  /// `to`, whole elements.
  std::function<void(std::uint64_t first, std::span<std::byte> to)> fetch;

  /// By shape and dtype.
  std::uint64_t size_bytes() const;
};

/// The part of a manifest that one writer made.
struct WrittenShards {
  std::map<std::string, FileRecord> files;
  std::map<std::string, TensorRecord, std::less<>> tensors;  // boxes of this writer only
  double seconds = 0;  // from the first byte until all of it was durable
};

/// Of one file and of the values of each of its boxes, in the order in which these are given.
struct ShardHashes {
  Hash128 file;
  std::vector<Hash128> boxes;
};

struct ShardOptions {
  int writer = 0;  // distinguishes the files of concurrent writers of one checkpoint
  std::uint64_t max_shard_bytes = std::uint64_t{4} << 30;
  Failpoint failpoint = {};
  std::stop_token stop = {};  // a StorageError soon after the request
  WritePace* pace = nullptr;  // outlives the writing; null: as fast as it goes
};

/// The name of a box in its shard: the tensor's own if the box is the whole tensor, so that any
/// reader finds it, else `name@offset,offset`.
std::string name_in_file(const std::string& tensor, const Dims& global_shape, const Box& box);

/// The boxes [begin, end) of one file, and in which order it has them.
struct ShardBoxes {
  std::size_t begin = 0, end = 0;
  std::vector<std::size_t> order;  // ascending in the file, indices counted from `begin`
};

/// What each file gets of the boxes, in the given order: it ends before it would exceed
/// max_shard_bytes (a larger box gets its own).
std::vector<ShardBoxes> divide_into_shards(std::span<const TensorBox> boxes,
                                           std::uint64_t max_shard_bytes);

/// The hashes of the file that write_shards() makes of `boxes`, all of one file, in `order`; reads
/// them once. None of them is fetched.
ShardHashes hash_shard(std::span<const TensorBox> boxes, std::span<const std::size_t> order,
                       std::uint64_t max_shard_bytes);

/// Writes the boxes to `shard-WWWW-NNNN.safetensors` in `directory`, divided into files as above.
/// Bytes that lie as place_in_snapshot() lays them are written from where they are. Each file is
/// hashed while written, unless `hashes` has those of all files, and durable on return.
/// StorageError if writing fails, SourceFailed if a fetch does, CheckpointError for boxes that
/// cannot be stored.
WrittenShards write_shards(const std::filesystem::path& directory, std::span<const TensorBox> boxes,
                           const ShardOptions& options, std::span<const ShardHashes> hashes = {});

/// Adds one writer's shards to the manifest; CheckpointError if writers disagree about a tensor.
void add_shards(Manifest& manifest, const WrittenShards& shards);

}  // namespace llmtrain::checkpoint
