#pragma once
/// Where a process stands among those of its job, as its launcher says.

#include <functional>
#include <string>
#include <string_view>

namespace llmtrain {

struct JobPlace {
  int rank = 0;
  int size = 1;
  /// Among the processes on this machine.
  int local_rank = 0;
  int local_size = 1;
};

/// How this process was started.
struct Launch {
  /// "mpirun", "srun"; empty: by itself.
  std::string launcher;
  JobPlace place;
};

/// By the variables that launchers set: Open MPI's mpirun, and srun with PMI. RecipeError, with the
/// remedy, for a task of srun that has no PMI: it could not find the others, and each task would
/// train a run of its own.
Launch launch_of(const std::function<const char*(const char*)>& environment);
/// Of this process.
const Launch& this_launch();

}  // namespace llmtrain
