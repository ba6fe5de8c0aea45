#pragma once
/// The batch job that a run is a part of, as its environment tells.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace llmtrain::train {

/// Of Slurm; without one, `id` is empty.
struct Job {
  std::string id;             // SLURM_JOB_ID
  std::int64_t restarts = 0;  // SLURM_RESTART_COUNT: how often Slurm has started it again
  /// SLURM_JOB_END_TIME, or what the batch script found out: seconds since 1970.
  std::optional<double> end;
  bool end_is_past = false;  // the variable's time, which is none then: it is another job's
};

/// At the time `now`, in seconds since 1970. What is no number is absent: a recipe cannot mend it.
Job job_of(const std::function<const char*(const char*)>& environment, double now);
/// Of this process.
const Job& this_job();

/// Seconds since 1970 by this machine's clock.
double unix_time();

}  // namespace llmtrain::train
