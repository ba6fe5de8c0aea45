#pragma once
/// `status.json` in the directory of a run: what it is doing, for people and scripts. Rank 0 writes
/// it; a reader finds the old or the new file whole.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lib/base/error.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/starts.hpp"

namespace llmtrain::train {

/// Times are seconds since 1970. What is not known yet is absent from the file.
struct RunStatus {
  /// "starting", "checking checkpoints", "preparing data", "loading a checkpoint", "training",
  /// "evaluating", "saving", "going back"; and of a process that has ended: "done", "stopped",
  /// "failed".
  std::string phase;
  std::int64_t step = 0, total_steps = 0;
  std::optional<std::int64_t> tokens;  // trained
  std::optional<double> loss, tokens_per_second, step_seconds, eta_seconds;
  std::optional<std::int64_t> checkpoint_step;
  std::optional<double> checkpoint_time;
  /// The process that writes: rank 0.
  std::string host;
  std::int64_t pid = 0;
  std::int64_t pid_start = 0;  // field 22 of its /proc/PID/stat: a pid is used again
  std::int64_t ranks = 1;
  std::string job;
  std::int64_t starts = 1, lost_steps = 0;  // over all starts
  double started = 0, updated = 0;
  /// Of what has ended.
  std::optional<std::uint8_t> exit_code;
  std::string message;

  bool has_ended() const { return exit_code.has_value(); }
};

std::string to_json(const RunStatus& status);
/// DataError naming `name` for what is no status.
RunStatus parse_status(std::string_view content, std::string_view name);
/// Nothing where there is no file; DataError for one that cannot be read.
std::optional<RunStatus> read_status(const std::filesystem::path& directory);
/// Of a directory that somebody names: RecipeError where it is none of a run, DataError where its
/// status cannot be read, both with the remedy.
RunStatus status_of_run(const std::filesystem::path& directory);

/// How long a living process leaves its file alone at most, twice over.
inline constexpr double kSilenceSeconds = 30;

/// What can be told of the process that wrote it.
enum class Life : std::uint8_t {
  ended,   // and said so
  alive,   // is there, and has written lately
  silent,  // is there, but does not write: stopped, or its disk hangs
  dead,    // of this machine, and not there any more
  missing  // of another machine, and has not written lately
};
Life life_of(const RunStatus& status, double now);
/// Lines for people: of what a status says no control character reaches the terminal.
std::string describe(const RunStatus& status, double now);

/// Keeps the file as it says: a thread writes what has changed, at most once a second, and that the
/// process lives, every 10 s.
class StatusFile {
 public:
  StatusFile() = default;
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  /// Of a process that has the directory's lock: it is starting. Nothing is written before; on
  /// ranks that never open it, nothing at all. Step and checkpoint stay those of the start before,
  /// and so do the numbers of starts and of lost steps, until this one begins.
  void open(const std::filesystem::path& directory, const Start& process);
  /// Of the start before; 0 where that is not known.
  std::int64_t last_step() const { return last_step_; }
  /// Likewise: of its last checkpoint.
  std::optional<std::int64_t> last_checkpoint() const { return last_checkpoint_; }
  /// The run goes on from `step`, as the start of this number.
  void begin(std::optional<std::int64_t> step, std::int64_t starts, std::int64_t lost_steps);
  /// Runs `body`; its exception ends the status.
  ExitCode watch(const std::function<ExitCode()>& body);
  /// These two are the process's activity (lib/base/activity.hpp), too.
  void enter(std::string_view phase);
  void at_step(std::int64_t step);
  void length(std::int64_t total_steps);
  void add(const StepRecord& record);
  void saved(std::int64_t step);
  /// Writes at once, and no more after that. `phase` is one of those that have ended.
  void end(std::string_view phase, ExitCode code, std::string_view message);

 private:
  template <class Change>
  void change(const Change& change);
  void write_now();
  void keep_writing();

  std::filesystem::path directory_;
  std::mutex writing_, mutex_;
  std::condition_variable wake_;
  RunStatus status_;
  std::int64_t last_step_ = 0;
  std::optional<std::int64_t> last_checkpoint_;
  bool changed_ = false, ends_ = false, failed_ = false;
  std::thread writer_;
};

}  // namespace llmtrain::train
