#pragma once
/// Runs the real executable with a limit on its time.

#include <string>
#include <vector>

namespace llmtrain::test {

struct ProcessResult {
  int exit_code = -1;  // -signal when it was killed
  std::string output;  // standard output and error, in the order in which they came
  bool timed_out = false;
};

/// Runs `arguments[0]` in `directory` and kills it after `limit_seconds`. With `kill_after_seconds`
/// >= 0 it gets SIGKILL then.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::string& directory,
                          double limit_seconds, double kill_after_seconds = -1);

}  // namespace llmtrain::test
