#pragma once
/// The starts of a run: `starts.jsonl` in its directory, a line for each. Of rank 0.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.hpp"
#include "lib/train/job.hpp"

namespace llmtrain::train {

/// Restarts bring a run no further.
class NoProgressError : public ErrorWith<ExitCode::no_progress> {
  using ErrorWith::ErrorWith;
};

struct Start {
  double time = 0;  // seconds since 1970
  std::string host;
  std::int64_t pid = 0;
  std::int64_t ranks = 1;
  std::string job;                   // of Slurm; may be empty
  std::int64_t restarts = 0;         // Job::restarts
  std::optional<std::int64_t> step;  // of the checkpoint that it goes on from
  std::int64_t lost_steps = 0;       // that the start before it had reported beyond `step`
  std::uint64_t prepared_bytes = 0;  // of data that were there already

  bool operator==(const Start&) const = default;
};

/// The file's line, without its end.
std::string to_line(const Start& start);
/// A last line that was not finished is no start; DataError, naming the file and the line, for
/// another that is none.
std::vector<Start> parse_starts(std::string_view content, std::string_view name);
/// Empty where there is no file.
std::vector<Start> read_starts(const std::filesystem::path& directory);
/// The same of a start, which no line of the file stops: those that are none are set aside
/// (keep_lines).
std::vector<Start> keep_starts(const std::filesystem::path& directory);
/// Survives a loss of power.
void append_start(const std::filesystem::path& directory, const Start& start);
/// Takes out the last line, of a start that goes on from another step than it said.
void take_back_start(const std::filesystem::path& directory);

/// Bytes of the files below `cache` that are finished; 0 where there is no such directory.
std::uint64_t prepared_bytes_in(const std::filesystem::path& cache);

/// How many starts of the same job before `now` went on from the same step, too: those that Slurm
/// has started again without a newer checkpoint. Before the first one, more prepared data are
/// progress, too. 0 without a job: a person may start as often as they like.
std::int64_t starts_without_progress(const std::vector<Start>& starts, const Start& now);

/// NoProgressError when as many restarts in a row as `limit` have come no further, and `now` would
/// be one more.
void check_progress(const std::vector<Start>& starts, const Start& now, std::int64_t limit);

}  // namespace llmtrain::train
