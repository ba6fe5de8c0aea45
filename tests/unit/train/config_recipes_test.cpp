// The recipes of configs/: those that the executable brings, and one for each optimizer.
#include <algorithm>
#include <filesystem>
#include <map>

#include <doctest/doctest.h>

#include "lib/train/recipe.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain::train {

namespace {

namespace fs = std::filesystem;

/// Of each folder of configs/ its files, by their names without the ending.
std::map<std::string, std::vector<std::string>> files_by_folder() {
  const fs::path root = test_file("../configs");
  std::map<std::string, std::vector<std::string>> found;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    const fs::path file = entry.path().lexically_relative(root);
    CAPTURE(file.string());
    CHECK(file.extension() == ".yaml");
    found[file.parent_path().string()].push_back(file.stem().string());
  }
  for (auto& [folder, files] : found) std::ranges::sort(files);
  return found;
}

void check_recipe(Recipe& root, const fs::path& file) {
  recipe::LoadRequest request{.file = file, .builtin = builtin_recipe};
  request.reserved = reserved_keys();
  for (const recipe::Issue& issue : recipe::check(root, request)) {
    FAIL_CHECK(file.string(), ": ", issue.key_path, ": ", issue.problem);
  }
}

}  // namespace

TEST_CASE("configs has recipes, those of optimizers, profiles of hardware, and nothing else") {
  std::vector<std::string> folders;
  for (const auto& [folder, files] : files_by_folder()) folders.push_back(folder);
  CHECK(folders == std::vector<std::string>{"", "hardware", "optimizers"});
}

TEST_CASE("the executable brings every recipe of configs by its file's name") {
  const auto names = builtin_recipe_names();
  CHECK(std::vector<std::string>(names.begin(), names.end()) == files_by_folder().at(""));
  for (const std::string_view name : names) {
    Recipe root;
    check_recipe(root, name);
  }
}

TEST_CASE("every optimizer of the table has a recipe of its name, which chooses it") {
  std::vector<std::string> rows;
  for (const optim::OptimizerRow& row : optim::optimizer_table()) rows.emplace_back(row.name);
  std::ranges::sort(rows);
  CHECK(files_by_folder().at("optimizers") == rows);
  for (const std::string& name : rows) {
    CAPTURE(name);
    Recipe root;
    check_recipe(root, test_file("../configs/optimizers/" + name + ".yaml"));
    CHECK(root.optimizer.name().name == name);
    root.enter({});  // one rank can run it
    CHECK(root.engine_options().optimizer != nullptr);
  }
}

}  // namespace llmtrain::train
