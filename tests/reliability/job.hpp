#pragma once
/// A small run that is hit by faults, and what must hold of it afterwards.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

using Environment = std::vector<std::pair<std::string, std::string>>;
using Overrides = std::vector<std::string>;

/// About a megabyte of state, in six files of one rank, in two of each of three; six steps, a save
/// every second one.
struct Layout {
  int ranks = 1;
  bool async = false;
  std::string parallelism = "{}";  // of the recipe
  /// Every other step is saved on other storage. No such save is left out, because the recipe asks
  /// for ways back.
  bool local = false;
  /// Ranks are started as torchrun does and meet by TCP; else by mpirun.
  bool tcp = false;

  static constexpr std::int64_t kSteps = 6, kInterval = 2;
  Overrides overrides() const;
  std::string name() const;  // "2 ranks, async"
};

/// A directory with recipe, text and prepared tokens, as a run finds it that has never saved; or
/// with what earlier steps have saved.
class Job {
 public:
  /// A directory of its own with a copy of what `prepared` has.
  explicit Job(const Layout& layout, const Job* prepared = nullptr);

  const std::filesystem::path& directory() const { return directory_.path(); }
  std::filesystem::path checkpoints() const { return directory() / "run" / "checkpoints"; }
  /// Of the run on other storage, if it has any now.
  std::optional<std::filesystem::path> local_checkpoints() const;

  /// `llmtrain run` by all ranks, with this in their environment.
  ProcessResult run(const Environment& environment = {}, const Overrides& more = {},
                    const std::string& executable = LLMTRAIN_EXECUTABLE,
                    double limit_seconds = 90) const;
  /// The same; rank 0, or the one rank, gets `signal` when this was printed.
  ProcessResult run_signalled(const Environment& environment, int signal,
                              const std::string& after) const;
  ProcessResult run_or_fail(const Overrides& more = {}) const;
  /// One rank, killed after so long.
  ProcessResult run_for(double seconds, const Overrides& more) const;
  /// Tensors, state and metrics of a step.
  std::string fingerprint(std::int64_t step) const;
  /// Last step that metrics.jsonl has.
  std::int64_t reported() const;

 private:
  std::vector<std::string> command(const Environment& environment, const Overrides& more,
                                   const std::string& executable) const;

  Layout layout_;
  TempDir directory_;
};

/// A job of this layout that has prepared its data and was cut right after the save of `steps` (0:
/// before the first step), with all earlier saves; and the fingerprint after the last step when
/// nothing goes wrong. Made once.
const Job& prepared_job(const Layout& layout, std::int64_t steps);
/// Cut after step 4, whose checkpoint has a byte turned over since: a start goes back to step 2.
const Job& damaged_job(const Layout& layout);
const std::string& expected_fingerprint(const Layout& layout);

/// Bytes of a durable step's tensors, without its records and counters.
std::string weights_of(const Job& job, std::int64_t step);

/// After a run that printed `output` and ended somehow: opening the store twice finds the old or
/// the new checkpoint and no leftovers; another run goes on from what was said to be saved, has
/// lost less than an interval (two with a save beside the run), and ends as if nothing had
/// happened. Of a damaged_job() the damaged checkpoint may still be there, and cost an interval
/// more. Returns what does not hold, or "".
std::string check_recovery(const Job& job, const Layout& layout, const std::string& output,
                           std::int64_t steps_before, bool was_damaged = false);

}  // namespace llmtrain::test
