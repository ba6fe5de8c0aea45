#pragma once
/// Preparing the data in several processes, such as the tasks of a job array.

#include <string>
#include <string_view>

#include "lib/data/shard_plan.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// "3/8": task 3 of 8, counted from 0. RecipeError for anything else.
data::Share parse_share(std::string_view text);

/// The task that Slurm's environment says this is: of a job array that is a range, with any start
/// and step. RecipeError outside of one.
data::Share slurm_share();

struct SharedPreparation {
  bool complete = false;  ///< everything is there: `run` prepares nothing more
  std::string text;       ///< what is done, or what is missing and which command makes it
};

/// Does the task's share of what is missing: signatures of documents, where the recipe cleans;
/// then, when those of all tasks are there, token files. Any number of tasks may do so at the same
/// time, and again after a crash: the files end the same as those of one process.
/// `recipe_arguments`: recipe and overrides of the command line, for the text.
SharedPreparation prepare_share(const Recipe& recipe, const data::Share& share,
                                const std::string& recipe_arguments);

}  // namespace llmtrain::train
