#pragma once
/// Runs that begin with a checkpoint of step 0, whose weights come from a Hugging Face directory.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/comm/world.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// The recipe of such a run: with model.init_from `from` (a directory, or one .safetensors file).
/// Of a process that is alone (`ranks` 1), without its layout: any layout goes on from the same
/// checkpoint. RecipeError if the recipe has first weights of its own, or forbids to go on.
std::unique_ptr<Recipe> load_importing_recipe(const std::filesystem::path& file,
                                              std::vector<std::string> overrides,
                                              const std::filesystem::path& from, int ranks);

/// Makes what a run makes before its first step, and saves it: `run` goes on from there with the
/// bits of one that began with model.init_from. Collective. RecipeError, before anything is made,
/// where the output directory has checkpoints; else the errors of run().
ExitCode import_run(const Recipe& recipe, const std::filesystem::path& file, World& world);

}  // namespace llmtrain::train
