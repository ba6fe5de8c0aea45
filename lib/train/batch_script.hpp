#pragma once
/// The batch scripts of a recipe for Slurm (sbatch(1)): a job that trains, and a job array that
/// prepares the data before it.
///
/// Slurm sends a job's signal to the tasks of its steps unless --signal says B:, which would signal
/// the script alone: every rank has to hear it. The script asks for its own requeue when, and only
/// when, the run ended with 75 (stopped and saved); where a machine fails, Slurm does it.

#include <filesystem>
#include <string>

#include "lib/train/recipe.hpp"

namespace llmtrain::train {

struct BatchScript {
  std::string name;       ///< of the job
  std::string arguments;  ///< recipe and overrides as the shell reads them
  /// The file that this process runs, as /proc/self/exe says: the job's, where slurm.executable
  /// names none.
  std::filesystem::path self;
};

/// The ranks that the recipe's job will have, as if this process were the first of them.
/// RecipeError where layout, batch or GPUs do not fit them.
void enter_job(Recipe& recipe);

/// The recipe has entered its job. RecipeError where neither it nor the script knows a file of
/// llmtrain that is there.
std::string training_script(const Recipe& recipe, const BatchScript& script);
/// One processor set of the same section for each of `tasks` tasks; no GPUs.
std::string data_script(const Recipe& recipe, const BatchScript& script, int tasks);

/// "2-03:04:05" of sbatch's --time, which has whole seconds; up to one more than `seconds`.
std::string slurm_time(double seconds);

}  // namespace llmtrain::train
