// Rules over keys of several sections.
#include <doctest/doctest.h>

#include "lib/train/recipe.hpp"
#include "tests/unit/train/tiny_recipe.hpp"

namespace llmtrain::train {

TEST_CASE("products whose operands are quantized are not computed again by name") {
  const auto problems = [](std::vector<std::string> overrides) {
    overrides.push_back("activation_checkpoint={mode: selective, ops: [norm, up_proj]}");
    Recipe root;
    std::vector<std::string> lines;
    for (const recipe::Issue& issue : recipe::check(root, {.file = "r.yaml",
                                                          .text = std::string(kTinyRecipe),
                                                          .overrides = std::move(overrides)})) {
      lines.push_back(issue.key_path + ": " + issue.problem);
    }
    return lines;
  };
  CHECK(problems({}).empty());
  CHECK(problems({"precision.compute=fp8"}) ==
        std::vector<std::string>{
            "activation_checkpoint.ops: up_proj with compute fp8: scales follow what a product was "
            "given, once"});
}

}  // namespace llmtrain::train
