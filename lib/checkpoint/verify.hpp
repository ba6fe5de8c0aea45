#pragma once
/// Checking a checkpoint on disk before anything of it is used.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lib/checkpoint/manifest.hpp"

namespace llmtrain::checkpoint {

enum class VerifyLevel {
  header,        // manifest, file lengths, headers: no tensor data is read
  hash,          // also every byte, against the hashes of the manifest
  hash_on_disk,  // the same past the page cache (File::bypass_cache): nobody reads it soon
};

struct Problem {
  std::string file;    // in the checkpoint's directory
  std::string tensor;  // empty if it concerns the whole file
  std::string reason;
};
/// "shard-0000-0000.safetensors: tensor 'x': has shape ...".
std::string to_string(const Problem& problem);
/// The first, and how many more there are; empty without any.
std::string to_string(std::span<const Problem> problems);

/// The manifest of the checkpoint in `directory`. DataError if it cannot be read, CheckpointError
/// if it is not valid.
Manifest read_manifest(const std::filesystem::path& directory);

/// Everything that is wrong with the checkpoint; empty if it is valid. Never throws for what is on
/// disk. `step` is the one that the directory's name promises. Files that the manifest does not
/// name are ignored.
std::vector<Problem> verify_checkpoint(const std::filesystem::path& directory, std::uint64_t step,
                                       VerifyLevel level);

}  // namespace llmtrain::checkpoint
