#include "lib/train/import_run.hpp"

#include "lib/base/log.hpp"
#include "lib/base/require.hpp"
#include "lib/train/first_weights.hpp"
#include "lib/train/trainer.hpp"

namespace llmtrain::train {

namespace fs = std::filesystem;

namespace {

/// As YAML, whatever characters it has.
std::string quoted(const fs::path& path) {
  std::string text = "'";
  for (const char c : path.string()) text += c == '\'' ? "''" : std::string(1, c);
  return text + "'";
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
}

void check_begins(const Recipe& recipe, const fs::path& from) {
  const auto& own = recipe.model.init_from();
  if (own && !is_same(*own, from)) {
    throw recipe::RefusedValue(
        recipe.model.init_from,
        fmt::format("other weights than {} are to be imported", from.string()),
        "leave it out, or import what it names");
  }
  if (recipe.checkpoint.resume().mode != Resume::Mode::never) return;
  throw recipe::RefusedValue(recipe.checkpoint.resume,
                             "the run would refuse the checkpoint that an import makes",
                             "leave it out");
}

}  // namespace

std::unique_ptr<Recipe> load_importing_recipe(const fs::path& file,
                                              std::vector<std::string> overrides,
                                              const fs::path& from, int ranks) {
  const auto own = load_recipe(file, overrides);
  check_begins(*own, from);
  overrides.push_back("model.init_from=" + quoted(from));
  // There is none yet that it must go on from.
  const Resume::Mode mode = own->checkpoint.resume().mode;
  if (mode == Resume::Mode::must || mode == Resume::Mode::step) {
    overrides.push_back("~checkpoint.resume");
  }
  if (ranks == 1) overrides.push_back("~parallelism");
  return load_recipe(file, overrides);
}

ExitCode import_run(const Recipe& recipe, const fs::path& file, World& world) {
  const fs::path directory = output_dir(recipe, file);
  require<RecipeError>(!has_checkpoint(directory),
                       "run.output_dir {} has checkpoints, from which `llmtrain run` goes on: name "
                       "another run.output_dir, or delete {}",
                       directory.string(), (directory / "checkpoints").string());
  return begin_run(recipe, file, world);
}

}  // namespace llmtrain::train
