#include "lib/comm/job_place.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

using Environment = std::function<const char*(const char*)>;

std::optional<int> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  require<RecipeError>(error == std::errc() && stop == end && value >= 0,
                       "the environment variable {} is '{}', which is no number of processes", name,
                       text);
  return value;
}

}  // namespace

Launch launch_of(const Environment& environment) {
  if (const auto size = number(environment, "OMPI_COMM_WORLD_SIZE")) {
    return {
        .launcher = "mpirun",
        .place = {.rank = number(environment, "OMPI_COMM_WORLD_RANK").value_or(0),
                  .size = *size,
                  .local_rank = number(environment, "OMPI_COMM_WORLD_LOCAL_RANK").value_or(0),
                  .local_size = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE").value_or(*size)}};
  }
  // A batch script has SLURM_NTASKS too, but it is no step.
  const auto tasks = number(environment, "SLURM_STEP_NUM_TASKS");
  if (!tasks || *tasks == 1) return {};
  const int nodes = number(environment, "SLURM_STEP_NUM_NODES").value_or(1);
  const JobPlace place{.rank = number(environment, "SLURM_PROCID").value_or(0),
                       .size = *tasks,
                       .local_rank = number(environment, "SLURM_LOCALID").value_or(0),
                       .local_size = (*tasks + nodes - 1) / std::max(1, nodes)};
  require<RecipeError>(environment("PMIX_RANK") != nullptr || environment("PMI_RANK") != nullptr,
                       "task {} of {} of srun, which gave no way to find the others; start with "
                       "srun --mpi=pmix",
                       place.rank, place.size);
  return {.launcher = "srun", .place = place};
}

const Launch& this_launch() {
  static const Launch launch = launch_of([](const char* name) { return std::getenv(name); });
  return launch;
}

}  // namespace llmtrain
