#pragma once
/// Which parts of the source files make one shard, and what identifies the files.

#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/hash.hpp"
#include "lib/data/source.hpp"

namespace llmtrain::data {

/// Documents that start in bytes [begin, end) of one file.
struct FileRange {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
using ShardPlan = std::vector<FileRange>;

/// One task's part of numbered work; tasks together do all of it.
struct Share {
  std::size_t index = 0;  ///< below count
  std::size_t count = 1;
  bool has(std::size_t item) const { return item % count == index; }
  /// No part: for finding out whether all is done.
  static constexpr Share nothing() { return {1, 1}; }
};

/// A shard covers about this many bytes of source files, which are held in memory together.
inline constexpr std::uint64_t kShardSourceBytes = std::uint64_t{64} << 20;

/// Cuts the files into shards; a pure function of the files and the shard size.
std::vector<ShardPlan> plan_shards(std::span<const SourceFile> files,
                                   std::uint64_t shard_source_bytes);

/// Names, sizes and times of the files go to `contents`; how they are read goes to `rules`.
void hash_files(std::span<const SourceFile> files, Hasher128& contents, Hasher128& rules);

}  // namespace llmtrain::data
