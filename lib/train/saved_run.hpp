#pragma once
/// A finished or running run, opened for evaluation, generation and export.

#include <filesystem>
#include <memory>
#include <optional>

#include "lib/checkpoint/store.hpp"
#include "lib/data/tokenizer.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/corpus.hpp"
#include "lib/train/device.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Recipe, tokenizer and one checkpoint from an output directory; nothing in it is changed, and
/// the parameters stay on the disk. RecipeError for what is no run's directory, CheckpointError
/// without a valid checkpoint.
struct SavedFiles {
  /// `step` empty: the newest valid one.
  SavedFiles(const std::filesystem::path& directory, std::optional<std::uint64_t> step);

  checkpoint::CheckpointStore store;
  std::uint64_t step = 0;
  /// As the checkpoint has it.
  std::unique_ptr<Recipe> recipe;
  std::shared_ptr<const data::Tokenizer> tokenizer;
};

/// The same with the parameters in memory.
class SavedRun {
 public:
  SavedRun(const std::filesystem::path& directory, std::optional<std::uint64_t> step);

  const Recipe& recipe() const { return *files_.recipe; }
  const data::Tokenizer& tokenizer() const { return *files_.tokenizer; }
  /// The recipe's text in the run's own tokens. A warning when it is not the text that the run was
  /// trained on.
  Corpus corpus() const;
  engine::Engine& engine() { return *engine_; }
  std::uint64_t step() const { return files_.step; }

 private:
  SavedFiles files_;
  std::unique_ptr<RunDevice> device_;
  std::unique_ptr<engine::Engine> engine_;
  std::string data_fingerprint_;
};

}  // namespace llmtrain::train
