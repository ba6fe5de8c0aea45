#include "lib/train/first_weights.hpp"

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/hf_directory.hpp"

namespace llmtrain::train {

void import_first_weights(const Recipe& recipe, ParameterStore& parameters) {
  const auto& directory = recipe.model.init_from();
  if (!directory) return;
  const std::string config = *directory + "/config.json";
  const models::DecoderSpec spec = recipe.model.spec();
  const std::string difference = models::computed_difference(
      spec, models::spec_from_hf_config(checkpoint::read_hf_config(*directory), config));
  // Also where shapes show it: weights that fit the recipe are not what such a file describes.
  require<RecipeError>(difference.empty(),
                       "model.init_from: the recipe and {} describe different models: {}; set the "
                       "recipe's keys to the file's values, or correct the file if its weights are "
                       "the recipe's",
                       config, difference);
  checkpoint::import_hf(*directory, parameters, recipe.model.architecture().hf_layout(spec));
  log::info("first weights from {}", *directory);
}

}  // namespace llmtrain::train
