#pragma once
/// The weights that a run starts with when they are not random.

#include "lib/param/parameter.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Sets all parameters from the Hugging Face directory that model.init_from names, if it names one.
/// RecipeError if its config.json describes another model than the recipe, DataError and
/// CheckpointError for files that cannot be used.
void import_first_weights(const Recipe& recipe, ParameterStore& parameters);

}  // namespace llmtrain::train
