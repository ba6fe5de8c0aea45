// Rules over keys of several sections.
#include <doctest/doctest.h>

#include "lib/train/recipe.hpp"
#include "tests/unit/train/tiny_recipe.hpp"

namespace llmtrain::train {

namespace {

std::vector<std::string> problems_of(std::vector<std::string> overrides) {
  Recipe root;
  std::vector<std::string> lines;
  for (const recipe::Issue& issue : recipe::check(root, {.file = "r.yaml",
                                                        .text = std::string(kTinyRecipe),
                                                        .overrides = std::move(overrides)})) {
    lines.push_back(issue.key_path + ": " + issue.problem);
  }
  return lines;
}

}  // namespace

TEST_CASE("products whose operands are quantized are not computed again by name") {
  const auto problems = [](std::vector<std::string> overrides) {
    overrides.push_back("activation_checkpoint={mode: selective, ops: [norm, up_proj]}");
    return problems_of(std::move(overrides));
  };
  CHECK(problems({}).empty());
  CHECK(problems({"precision.compute=fp8"}) ==
        std::vector<std::string>{
            "activation_checkpoint.ops: up_proj with compute fp8: scales follow what a product was "
            "given, once"});
}

TEST_CASE("bf16 states are refused beside FP64 masters, and by optimizers that have none") {
  const std::string narrow = "optimizer.state_dtype=bf16";
  for (const char* compute : {"fp32", "bf16", "fp16", "fp8"}) {
    CHECK(problems_of({narrow, std::string("precision.compute=") + compute}).empty());
  }
  CHECK(problems_of({narrow, "precision.compute=fp64"}) ==
        std::vector<std::string>{"optimizer.state_dtype: bf16 is for masters of FP32, and those of "
                                 "fp64 are FP64"});
  CHECK(problems_of({narrow, "optimizer.name=sgd"}) ==
        std::vector<std::string>{"optimizer.state_dtype: bf16: sgd keeps no states"});
  CHECK(problems_of({"optimizer.state_dtype=fp32", "optimizer.name=sgd", "precision.compute=fp64"})
            .empty());
}

}  // namespace llmtrain::train
