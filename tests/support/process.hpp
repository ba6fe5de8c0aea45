#pragma once
/// Runs the real executable with a limit on its time.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llmtrain::test {

struct ProcessResult {
  int exit_code = -1;  // -signal when it was killed
  std::string output;  // standard output and error, in the order in which they came
  bool timed_out = false;
};

/// What happens to the process while it runs.
struct ProcessEvents {
  /// It is killed after so long: a test that hangs fails.
  double limit_seconds = 120;
  /// It gets SIGKILL after so long, and nothing is wrong with that; negative: it does not.
  double kill_after_seconds = -1;
  /// It gets `signal` once, as soon as its output holds `signal_after`. The pipe between holds one
  /// page, so that it cannot run far ahead of what was read.
  int signal = 0;
  std::string signal_after;
  /// Files cannot grow beyond this: a write(2) then fails, as on a full disk.
  std::optional<std::uint64_t> largest_file_bytes = {};
};

/// Runs `arguments[0]` in `directory`.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& directory,
                          const ProcessEvents& events);

}  // namespace llmtrain::test
