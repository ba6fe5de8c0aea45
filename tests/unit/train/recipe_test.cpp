#include "lib/train/recipe.hpp"

#include <doctest/doctest.h>

namespace llmtrain::train {

namespace {

std::vector<std::string> problems_of(const std::string& text) {
  Recipe root;
  std::vector<std::string> lines;
  for (const recipe::Issue& issue : recipe::check(root, {.file = "r.yaml", .text = text})) {
    lines.push_back(issue.key_path + ": " + issue.problem);
  }
  return lines;
}

}  // namespace

TEST_CASE("recipes without a model, or with a part of one, have issues and nothing divides by 0") {
  for (const char* text : {"recipe: 1", "model: 3", "model: {architecture: llama}",
                           "model: {architecture: gpt2, hidden_size: 64}",
                           "model: {architecture: gpt2, num_attention_heads: 0, hidden_size: 64}",
                           "model: {architecture: llama, hidden_size: 64, head_dim: 8}"}) {
    CAPTURE(text);
    CHECK_FALSE(problems_of(text).empty());
  }
  CHECK(problems_of("recipe: 1").front() == "model.architecture: required key is missing");
}

}  // namespace llmtrain::train
