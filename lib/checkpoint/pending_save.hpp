#pragma once
/// One save in progress: the commit protocol of a checkpoint directory.
///
/// `step-N.tmp-<nonce>` is filled with durable shards and a manifest, then renamed to `step-N`: at
/// every instant a crash leaves either no trace that a reader would look at, or the whole
/// checkpoint.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lib/checkpoint/model_export.hpp"
#include "lib/checkpoint/shards.hpp"
#include "lib/checkpoint/store_lock.hpp"

namespace llmtrain::checkpoint {

/// Every point at which a save calls its failpoint, in order ("shard.*" once per file or tensor,
/// "replace.*" only if the step was saved before, "verify.begin" and "retention.*" only if a
/// checkpoint is deleted). Those up to "save.written", but for "directory.*", "verify.begin" and
/// the last one are passed by every writer.
inline constexpr std::string_view kFailpoints[] = {
    "save.begin",        "directory.create", "directory.created", "shard.create",
    "shard.write.first", "shard.write",      "shard.write.last",  "shard.sync",
    "shard.close",       "save.written",     "manifest.create",   "manifest.half",
    "manifest.sync",     "directory.sync",   "replace.aside",     "commit.rename",
    "commit.sync",       "replace.trash",    "latest.write",      "latest.written",
    "verify.begin",      "retention.rename", "retention.delete",  "retention.half",
    "save.end"};

class PendingSave {
 public:
  /// Creates the temporary directory in `root`, whose `lock` outlives it.
  PendingSave(std::filesystem::path root, const StoreLock& lock, std::uint64_t step,
              ShardOptions options);
  /// Removes the temporary directory unless the save was committed.
  ~PendingSave();
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  /// Where further writers may put their shards (write_shards with another `writer`).
  const std::filesystem::path& directory() const { return temporary_; }
  WrittenShards write(std::span<const TensorBox> boxes);
  /// Writes the export, if there is one, and the manifest over all writers' shards, makes the
  /// directory durable and visible, and points `latest` at it. CheckpointError unless the boxes
  /// tile their tensors; LockLost, before anything is visible, where another process has taken the
  /// lock over.
  void commit(const RunState& run, std::span<const WrittenShards> shards,
              const ModelExport* model = nullptr, const WriteLimits& limits = {});

 private:
  void hit(std::string_view point) const;
  void write_manifest(const Manifest& manifest) const;
  void make_visible();

  std::filesystem::path root_;
  const StoreLock* lock_;
  std::uint64_t step_;
  ShardOptions options_;
  std::filesystem::path temporary_;
  bool committed_ = false;
};

/// "step-00001200".
std::string step_directory_name(std::uint64_t step);

/// 16 hexadecimal digits that no other process is using.
std::string make_nonce();
/// Whether make_nonce() could have made it.
bool is_nonce(std::string_view text);

}  // namespace llmtrain::checkpoint
