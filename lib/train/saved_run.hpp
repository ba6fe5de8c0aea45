#pragma once
/// A finished or running run, opened for evaluation and generation.

#include <filesystem>
#include <memory>
#include <optional>

#include "lib/data/tokenizer.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/device.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Recipe, tokenizer and the parameters of one checkpoint from an output directory; nothing in it
/// is changed. RecipeError for what is no run's directory, CheckpointError without a valid
/// checkpoint.
class SavedRun {
 public:
  /// `step` empty: the newest valid one.
  SavedRun(const std::filesystem::path& directory, std::optional<std::uint64_t> step);

  const Recipe& recipe() const { return *recipe_; }
  const data::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// The recipe's text in the run's own tokens. A warning when it is not the text that the run was
  /// trained on.
  Corpus corpus() const;
  engine::Engine& engine() { return *engine_; }
  std::uint64_t step() const { return step_; }

 private:
  std::unique_ptr<Recipe> recipe_;
  std::shared_ptr<const data::Tokenizer> tokenizer_;
  std::unique_ptr<RunDevice> device_;
  std::unique_ptr<engine::Engine> engine_;
  std::uint64_t step_ = 0;
  std::string data_fingerprint_;
};

}  // namespace llmtrain::train
