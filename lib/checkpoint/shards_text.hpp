#pragma once
/// What a writer of a checkpoint tells the one who commits it.

#include <string>
#include <string_view>

#include "lib/checkpoint/shards.hpp"

namespace llmtrain::checkpoint {

/// For parse_shards() of the same executable alone.
std::string format_shards(const WrittenShards& shards);
/// InternalError for what format_shards() has not written.
WrittenShards parse_shards(std::string_view text);

}  // namespace llmtrain::checkpoint
