#include "lib/train/first_weights.hpp"

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/hf_directory.hpp"
#include "lib/checkpoint/store.hpp"

namespace llmtrain::train {

namespace fs = std::filesystem;

namespace {

/// `weights`: a directory, or a file in one.
void check_config(const Recipe& recipe, const fs::path& weights) {
  const fs::path directory = fs::is_regular_file(weights) ? weights.parent_path() : weights;
  const fs::path config = directory / "config.json";
  if (!fs::exists(config)) {
    throw recipe::RefusedValue(
        recipe.model.init_from, fmt::format("{} is missing", config.string()),
        "name the directory of a model of Hugging Face, with its config.json");
  }
  const std::string difference = models::computed_difference(
      recipe.model.spec(),
      models::spec_from_hf_config(checkpoint::read_hf_config(directory), config.string()));
  // Also where shapes show it: weights that fit the recipe are not what such a file describes.
  if (difference.empty()) return;
  throw recipe::RefusedValue(
      recipe.model.init_from,
      fmt::format("the recipe and {} describe different models: {}", config.string(), difference),
      "set the recipe's keys to the file's values, or correct the file if its weights are the "
      "recipe's");
}

}  // namespace

bool has_checkpoint(const fs::path& run) {
  return !checkpoint::CheckpointStore::open_reader(run / "checkpoints").list().empty();
}

void check_first_weights(const Recipe& recipe) {
  const auto& directory = recipe.model.init_from();
  if (!directory) return;
  check_config(recipe, *directory);
  checkpoint::check_hf_files(*directory);
}

void check_first_weights(const Recipe& recipe, const fs::path& run) {
  if (!has_checkpoint(run)) check_first_weights(recipe);
}

void import_first_weights(const Recipe& recipe, ParameterStore& parameters) {
  const auto& directory = recipe.model.init_from();
  if (!directory) return;
  check_config(recipe, *directory);
  checkpoint::import_hf(*directory, parameters,
                        recipe.model.architecture().hf_layout(recipe.model.spec()));
  log::info("first weights from {}", *directory);
}

}  // namespace llmtrain::train
