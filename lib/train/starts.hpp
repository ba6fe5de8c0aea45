#pragma once
/// The starts of a run: `starts.jsonl` in its directory, a line for each. Of rank 0.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
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

  bool operator==(const Start&) const = default;
};

/// Empty where there is no file. A last line that was not finished is no start; DataError, naming
/// the line, for another that is none.
std::vector<Start> read_starts(const std::filesystem::path& directory);
/// Survives a loss of power.
void append_start(const std::filesystem::path& directory, const Start& start);

/// How many starts of `job` before this one went on from `step`, too: those that Slurm has started
/// again without a newer checkpoint. 0 without a job: a person may start as often as they like.
std::int64_t starts_without_progress(const std::vector<Start>& starts, const Job& job,
                                     std::optional<std::int64_t> step);

/// NoProgressError when as many restarts in a row as `limit` brought no newer checkpoint, and this
/// would be one more.
void check_progress(const std::filesystem::path& directory, const Job& job,
                    std::optional<std::int64_t> step, std::int64_t limit);

}  // namespace llmtrain::train
