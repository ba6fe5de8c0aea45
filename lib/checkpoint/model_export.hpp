#pragma once
/// What a checkpoint may have beside its tensors: the model for other programs, made from them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string_view>

#include "lib/checkpoint/loader.hpp"
#include "lib/checkpoint/write_pace.hpp"

namespace llmtrain::checkpoint {

/// The folder of it in a checkpoint's directory. No manifest names its files: a checkpoint is as
/// valid without them, and `ckpt export` makes them again.
inline constexpr std::string_view kExportName = "hf";

/// Of whoever writes for long.
struct WriteLimits {
  std::stop_token stop = {};  // a StorageError soon after the request
  WritePace* pace = nullptr;  // outlives the writing; null: as fast as it goes
};

struct ModelExport {
  /// About as many as `write` writes.
  std::uint64_t bytes = 0;
  /// Fills the new `directory` from the shards of all writers; durable on return. In the thread
  /// that writes the save, if there is one.
  std::function<void(const std::filesystem::path& directory, Loader& saved,
                     const WriteLimits& limits)>
      write;
};

}  // namespace llmtrain::checkpoint
