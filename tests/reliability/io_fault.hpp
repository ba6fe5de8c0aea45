#pragma once
/// Environments in which inject/io_faults.cpp hits a run that goes on from step 2.

#include <algorithm>
#include <filesystem>
#include <string>

#include "lib/base/require.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/trace.hpp"

namespace llmtrain::test {

/// Part of what is hit: files of the run that are no part of checkpoints (metrics, samples, starts,
/// status, plan, logs).
inline const Environment kFilesBeside{{"IO_FAULT_UNDER", "/run/"},
                                      {"IO_FAULT_APART", "/checkpoints"}};

/// The n-th call of a rank that changes something in the directory of checkpoints, unless `what`
/// names other places: of two variables of a name the last one counts.
inline Environment io_fault(int rank, int n, const Environment& what) {
  Environment environment{{"LD_PRELOAD", LLMTRAIN_IO_FAULTS},
                          {"IO_FAULT_UNDER", "/run/checkpoints"},
                          {"IO_FAULT_RANK", std::to_string(rank)},
                          {"IO_FAULT_AT", std::to_string(n)}};
  environment.insert(environment.end(), what.begin(), what.end());
  return environment;
}

/// How many calls of a rank `what` may hit in a whole run that goes on from `start`.
inline int count_calls(const Layout& layout, int rank, Environment what, const Job& start,
                       const Overrides& more = {}) {
  const Job job(layout, &start);
  std::erase_if(what, [](const auto& entry) { return entry.first == "IO_FAULT_DO"; });
  const std::string trace = (job.directory() / "trace").string();
  what.emplace_back("IO_FAULT_TRACE", trace);
  const ProcessResult result = job.run(io_fault(rank, 0, what), more);
  require(result.exit_code == 0, "a run that is only watched fails: {}", result.output);
  return std::filesystem::exists(trace) ? static_cast<int>(read_trace(trace).size()) : 0;
}

inline int count_calls(const Layout& layout, int rank, const Environment& what) {
  return count_calls(layout, rank, what, prepared_job(layout, 2));
}

}  // namespace llmtrain::test
