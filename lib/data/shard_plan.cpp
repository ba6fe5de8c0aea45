#include "lib/data/shard_plan.hpp"

#include <algorithm>

#include "lib/base/require.hpp"

namespace llmtrain::data {

std::vector<ShardPlan> plan_shards(std::span<const SourceFile> files,
                                   std::uint64_t shard_source_bytes) {
  require<RecipeError>(shard_source_bytes >= 1, "shard_source_bytes is 0");
  std::vector<ShardPlan> shards;
  std::uint64_t room = 0;
  for (std::uint32_t f = 0; f < files.size(); ++f) {
    std::uint64_t at = 0;
    do {
      if (room == 0) {
        shards.emplace_back();
        room = shard_source_bytes;
      }
      const std::uint64_t end = next_document_start(files[f], at + room);
      shards.back().push_back({f, at, end});
      room -= std::min(room, end - at);
      at = end;
    } while (at < files[f].size_bytes);
  }
  return shards;
}

void hash_files(std::span<const SourceFile> files, Hasher128& contents, Hasher128& rules) {
  for (const SourceFile& file : files) {
    contents.update(
        fmt::format("{}:{}:{}:{}\n", file.name.size(), file.name, file.size_bytes, file.mtime_ns));
    rules.update(fmt::format("{}:{}:{}:{}\n", static_cast<int>(file.format), file.text_key.size(),
                             file.text_key, file.max_document_bytes));
    if (!file.prompt_key.empty()) {
      rules.update(fmt::format("{}:{}:{}:{}\n", file.prompt_key.size(), file.prompt_key,
                               file.completion_key.size(), file.completion_key));
    }
  }
}

}  // namespace llmtrain::data
