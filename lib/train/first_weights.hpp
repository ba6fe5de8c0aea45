#pragma once
/// The weights that a run starts with when they are not random.

#include <filesystem>

#include "lib/param/parameter.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Whether a run in the directory `run` has something durable to go on from, valid or not.
bool has_checkpoint(const std::filesystem::path& run);

/// Finds in a moment most of what import_first_weights would refuse: config.json is read, and of
/// the weights' files what they say they hold. Same errors.
void check_first_weights(const Recipe& recipe);
/// As a run in the directory `run` would: one that has a checkpoint goes on from that, and needs
/// no first weights.
void check_first_weights(const Recipe& recipe, const std::filesystem::path& run);

/// Sets all parameters from the Hugging Face directory, or the .safetensors file of one, that
/// model.init_from names, if it names one. RecipeError if the directory's config.json is missing or
/// describes another model than the recipe, DataError and CheckpointError for files that cannot be
/// used.
void import_first_weights(const Recipe& recipe, ParameterStore& parameters);

}  // namespace llmtrain::train
