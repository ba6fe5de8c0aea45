#pragma once
/// Which directory below checkpoint.local.directory is a run's own: `local.json` in the directory
/// of its durable checkpoints names it, which is what `durable` is below.
///
/// Local checkpoints may be newer than all others, so a run must never meet those of another run,
/// nor those that it has made and then gone another way. The name is random and made once. It is
/// given up, and a new one taken, when the directory is not there any more (it may come back with
/// the machine), when the recipe names another one, and when the run goes on without any; and it
/// counts only in the directory for which it was written, not in a copy.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace llmtrain::train {

/// What local.json says.
struct LocalRecord {
  std::string directory;    // where the local checkpoints are
  std::string of;           // the directory of durable checkpoints that it was written for
  std::uint64_t inode = 0;  // of that directory
};

/// DataError, with `source` and the field, for a text that is no such record.
LocalRecord parse_local_record(std::string_view text, const std::string& source);
std::string to_json(const LocalRecord& record);

/// Where the last start had them, there or not. Nothing without a record, and, which is said, for
/// one that cannot be read or is another directory's.
std::optional<std::filesystem::path> recorded_local_checkpoints(
    const std::filesystem::path& durable);

/// The same, if it lies below `local`.
std::optional<std::filesystem::path> recorded_local_checkpoints(
    const std::filesystem::path& durable, const std::filesystem::path& local);

/// Survives a loss of power, like what comes next.
void record_local_checkpoints(const std::filesystem::path& durable,
                              const std::filesystem::path& directory);
void forget_local_checkpoints(const std::filesystem::path& durable);
/// The same of those that are not gone on from any more, which is said.
void leave_recorded_checkpoints(const std::filesystem::path& durable);

/// Where a start has them that wants them below `local`: where they were, or else, which is said,
/// in a new directory that has no record yet. RecipeError for a place in the run's own directory.
std::filesystem::path choose_local_checkpoints(const std::filesystem::path& durable,
                                               const std::filesystem::path& local);
/// The same, where `before` is what recorded_local_checkpoints() has said.
std::filesystem::path choose_local_checkpoints(const std::filesystem::path& durable,
                                               const std::filesystem::path& local,
                                               const std::optional<std::filesystem::path>& before);

}  // namespace llmtrain::train
