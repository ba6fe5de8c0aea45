#pragma once
/// A real Slurm of two virtual nodes on this machine (scripts/slurm/local_cluster.sh), and jobs on
/// it.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/workspace.hpp"

namespace llmtrain::test {

/// What ctest calls skipped.
inline constexpr int kSkipped = 77;

/// Starts the cluster for the tests of this process; kSkipped where there is no Slurm.
int start_cluster();
void stop_cluster();
/// `local_cluster.sh arguments`, which must succeed.
void call_cluster(const std::vector<std::string>& arguments);

/// Standard output and error of a command of Slurm's, which must succeed.
std::string slurm(const std::vector<std::string>& command, const std::string& directory = ".");

/// What scontrol says of a job.
struct JobFacts {
  std::string state;      // "COMPLETED"
  std::string exit_code;  // "2:0": code and signal
  int restarts = 0;
};
JobFacts facts_of(const std::string& job);
/// Waits until the job is in `state`, at most so long; what the job is like then.
JobFacts wait_for(const std::string& job, std::string_view state, double seconds);
/// Waits until the run in `where`/run has done so many steps of a process that lives.
void wait_for_step(const std::filesystem::path& where, std::int64_t step, double seconds);

/// `llmtrain slurm submit recipe.yaml overrides...`; the number of the last job.
std::string submit(const Workspace& here, std::vector<std::string> overrides);
/// What the jobs there have printed.
std::string log_of(const Workspace& here);

}  // namespace llmtrain::test
