#pragma once
/// From raw text to a token set on disk, and the cache that avoids doing it twice.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/data/cleaning.hpp"
#include "lib/data/shard_plan.hpp"
#include "lib/data/source.hpp"
#include "lib/data/token_set.hpp"
#include "lib/data/tokenizer.hpp"

namespace llmtrain::data {

/// Which documents of the sources go into a set.
enum class Part { all, training, held_out };

struct PrepareProgress {
  std::size_t shards_done = 0;
  std::size_t shards_total = 0;
  std::uint64_t bytes_done = 0;  ///< of the source files, read or skipped
  std::uint64_t bytes_total = 0;
  std::uint64_t tokens = 0;
};

struct PrepareOptions {
  Part part = Part::all;
  HeldOutRule held_out;  ///< divides training from held_out; unused for all
  std::uint64_t shard_source_bytes = kShardSourceBytes;
  /// Documents that it drops are left out; null: none. Its key is part of the set's.
  std::shared_ptr<const Cleaning> cleaning = nullptr;
  /// Called after each shard.
  std::function<void(const PrepareProgress&)> progress = nullptr;
};

/// What a set made from these would carry in its index.
TokenSetKey token_set_key(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                          const PrepareOptions& options);

struct PrepareStep {
  std::size_t shards = 0;
  std::vector<std::size_t> missing;  ///< shards of other tasks; the set is complete without any
};

/// Makes the share's shards that are not there, and index.json if no other shard is missing. Any
/// number of tasks may do so at the same time, with any shares: the files end the same. DataError
/// as `prepare`.
PrepareStep prepare_share(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                          const PrepareOptions& options, const Share& share,
                          const std::filesystem::path& directory);

/// Tokenises the documents into `directory` (created if needed): shards first, then index.json.
/// Documents without text are skipped and counted. A shard that is already there, undamaged and
/// made from the same input is kept, so an interrupted call continues where it was. The files do
/// not depend on the number of threads. DataError as `read_documents`, and if no document has text.
void prepare(std::span<const SourceFile> files, const Tokenizer& tokenizer,
             const PrepareOptions& options, const std::filesystem::path& directory);

/// Opens the set in `directory` if it was made from the same input; otherwise prepares it, with one
/// line in the log that says why.
TokenSet open_or_prepare(std::span<const SourceFile> files, const Tokenizer& tokenizer,
                         const PrepareOptions& options, const std::filesystem::path& directory,
                         ShardCheck check = ShardCheck::header);

}  // namespace llmtrain::data
