#include "lib/train/saved_run.hpp"

#include <algorithm>

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/checkpoint_tensors.hpp"
#include "lib/train/checkpointing.hpp"
#include "lib/train/named_checkpoint.hpp"
#include "lib/train/product_tuning.hpp"

namespace llmtrain::train {

namespace {

std::uint64_t choose_step(const checkpoint::CheckpointStore& store,
                          std::optional<std::uint64_t> step) {
  if (step) {
    const std::vector<std::uint64_t> steps = store.list();
    require<CheckpointError>(std::ranges::find(steps, *step) != steps.end(),
                             "there is no step {} in {}; {}", *step, store.root().string(),
                             other_steps_in(store, *step));
    const auto problems = store.verify(*step, checkpoint::VerifyLevel::hash);
    checkpoint::require_rights(store.directory_of(*step), problems);
    require<CheckpointError>(problems.empty(), "the checkpoint of step {} is not valid: {}", *step,
                             checkpoint::to_string(problems));
    return *step;
  }
  const checkpoint::NewestValid newest = store.newest_valid(checkpoint::VerifyLevel::hash);
  for (const checkpoint::Rejected& rejected : newest.rejected) {
    require<StorageError>(
        !rejected.has_no_right,
        "step {} of {}: {}. It may be whole: nothing older is taken in its place; "
        "--step takes another one",
        rejected.step, store.root().string(), rejected.reason);
    log::warning("checkpoint of step {} is not used: {}", rejected.step, rejected.reason);
  }
  const auto unread = std::ranges::find_if(newest.rejected, &checkpoint::Rejected::is_unread);
  require<StorageError>(newest.step || unread == newest.rejected.end(),
                        "{}: no checkpoint could be read; step {}: {}", store.root().string(),
                        unread == newest.rejected.end() ? 0 : unread->step,
                        unread == newest.rejected.end() ? "" : unread->reason);
  require<CheckpointError>(newest.step.has_value(), "{}: no valid checkpoint",
                           store.root().string());
  return *newest.step;
}

checkpoint::CheckpointStore open_store(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "resolved.yaml";
  require<RecipeError>(std::filesystem::exists(file),
                       "{}: no run (there is no {}); give the run.output_dir of one",
                       directory.string(), file.string());
  return checkpoint::CheckpointStore::open_reader(directory / "checkpoints");
}

// The one that the checkpoint was trained with: later starts may have had others.
std::unique_ptr<Recipe> recipe_of(const std::filesystem::path& directory,
                                  const checkpoint::CheckpointStore& store, std::uint64_t step) {
  auto recipe = std::make_unique<Recipe>();
  const std::string text = store.load(step).manifest().run.recipe;
  if (recipe::check(*recipe, {.file = "the checkpoint's recipe", .text = text}).empty()) {
    return recipe;
  }
  const std::filesystem::path newest = directory / "resolved.yaml";
  log::warning(
      "the recipe of step {} is of another version of this program: {} is taken in its place", step,
      newest.string());
  return load_recipe(newest, {});
}

// Recipes name files from the directory that a run is started in; who evaluates may be elsewhere.
void require_sources(const Recipe& recipe) {
  for (std::size_t i = 0; i < recipe.data.sources.size(); ++i) {
    const std::filesystem::path path = recipe.data.sources[i].path();
    const bool is_pattern = path.string().find_first_of("*?[") != std::string::npos;
    std::error_code error;
    if (path.is_absolute() || is_pattern || std::filesystem::exists(path, error)) continue;
    fail<DataError>(
        "{}: is not in {}; the run's recipe names it from the directory that the run was started "
        "in: call llmtrain there",
        path.string(), std::filesystem::current_path(error).string());
  }
}

}  // namespace

SavedFiles::SavedFiles(const std::filesystem::path& directory, std::optional<std::uint64_t> step)
    : store(open_store(directory)),
      step(choose_step(store, step)),
      recipe(recipe_of(directory, store, this->step)),
      tokenizer(recipe->tokenizer.bpe() == nullptr
                    ? data::make_byte_tokenizer()
                    : data::make_tokenizer({.type = "bpe", .path = directory})) {}

SavedRun::SavedRun(const std::filesystem::path& directory, std::optional<std::uint64_t> step)
    : files_(directory, step) {
  const Recipe& recipe = *files_.recipe;
  device_ = std::make_unique<RunDevice>(recipe);
  restore_product_choices(recipe, *device_, saved_product_choices(files_.store, files_.step));
  engine::EngineOptions options = recipe.engine_options();
  options.optimizer = nullptr;
  engine_ = std::make_unique<engine::Engine>(device_->place(), options);
  checkpoint::Loader loader = files_.store.load(files_.step);
  load_parameters(loader, *engine_);
  data_fingerprint_ = loader.manifest().run.data_cursor.fingerprint;
}

Corpus SavedRun::corpus() const {
  require_sources(*files_.recipe);
  Corpus corpus = open_corpus(*files_.recipe, files_.tokenizer);
  if (corpus.fingerprint != data_fingerprint_) {
    log::warning(
        "the text of data.sources, or how it is packed, is not what step {} was trained on: what "
        "is "
        "held out now may have been trained on",
        files_.step);
  }
  return corpus;
}

}  // namespace llmtrain::train
