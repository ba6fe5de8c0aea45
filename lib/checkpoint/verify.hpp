#pragma once
/// Checking a checkpoint on disk before anything of it is used.

#include <cstdint>
#include <filesystem>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "lib/checkpoint/handover.hpp"
#include "lib/checkpoint/manifest.hpp"
#include "lib/checkpoint/write_pace.hpp"

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
  bool is_unread = false;     // storage fails: who reads it another time may find it whole
  bool has_no_right = false;  // unread because this user may not
};
/// "shard-0000-0000.safetensors: tensor 'x': has shape ...".
std::string to_string(const Problem& problem);
/// The first, and how many more there are; empty without any.
std::string to_string(std::span<const Problem> problems);

/// What one of several checkers does of a check, and how.
struct CheckPart {
  int checker = 0, checkers = 1;  // each has as many files of the manifest, in order
  /// StorageError soon after it is requested.
  std::stop_token stop = {};
  /// Stopped, when a signal asks to stop: for runs that have not begun, or go back.
  bool heeds_signals = false;
  /// Rests behind each piece that was read, as who writes does; null: as fast as it goes.
  WritePace* pace = nullptr;
  /// Is offered each file, piece by piece; null: nobody wants them.
  Handover* handover = nullptr;
};
/// The files of a checkpoint that are a part's own, ascending.
std::vector<std::string> files_of(const Manifest& manifest, const CheckPart& part);

/// Of what has been found in the checkpoint in `directory`: StorageError, with the remedy, where
/// this user may not read a file of it. It may be whole, and a run that goes on from an older one
/// would put another in its place.
void require_rights(const std::filesystem::path& directory, std::span<const Problem> problems);

/// The manifest of the checkpoint in `directory`. DataError if it cannot be read (StorageError
/// where the reason is the storage, also after it was tried again, or missing rights),
/// CheckpointError if it is not valid.
Manifest read_manifest(const std::filesystem::path& directory);

/// Everything that is wrong with the checkpoint; empty if it is valid. Never throws for what is on
/// disk. `step` is the one that the directory's name promises. Files that the manifest does not
/// name are ignored. A part's problems are those of its files and of the manifest, which all read.
std::vector<Problem> verify_checkpoint(const std::filesystem::path& directory, std::uint64_t step,
                                       VerifyLevel level, const CheckPart& part = {});

/// What is wrong with the step of the manifest of the checkpoint in `directory`, and with the
/// lengths of the files that it names: all there is to see without reading them.
std::vector<Problem> check_lengths(const std::filesystem::path& directory, std::uint64_t step,
                                   const Manifest& manifest);

/// Each once, in order, of what several checkers have found: those of the manifest, all have. Of
/// what the first one has not found it says who has: others may see another directory.
std::vector<Problem> join_problems(std::span<const std::string> texts);
/// For join_problems() of the same executable.
std::string format_problems(std::span<const Problem> problems);

}  // namespace llmtrain::checkpoint
