#include "lib/train/corpus.hpp"

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/recipe/load.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::train {

namespace {

// Held-out files speak another language than the others. Too short to be cut into documents.
struct TwoLanguages {
  test::TempDir directory;
  std::vector<std::string> training;
  int held_out = 0;

  TwoLanguages() {
    for (int i = 0; i < 20; ++i) {
      const std::string name = fmt::format("{}.txt", i);
      const bool other = data::is_held_out(name, {.modulus = 4, .remainder = 0});
      std::string text;
      for (int word = 0; word < 150; ++word) {
        text += fmt::format("{}{} ", other ? "zyx" : "abc", word * (i + 3) % 17);
      }
      write_file_atomic(directory / name, text);
      if (other)
        ++held_out;
      else
        training.push_back(text);
    }
  }
};

}  // namespace

TEST_CASE("a tokenizer learns from the training documents alone") {
  const TwoLanguages texts;
  REQUIRE(texts.held_out > 0);
  Recipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = fmt::format(R"(
recipe: 1
model: {{architecture: gpt2, vocab_size: 300, hidden_size: 8, num_hidden_layers: 1,
        num_attention_heads: 1, max_position_embeddings: 8}}
tokenizer: {{type: bpe, vocab_size: 300}}
data: {{sources: [{{path: {0}}}], cache_dir: {0}/.cache, eval_modulus: 4}}
training: {{seq_len: 8, global_batch_size: 1, max_steps: 10}}
)",
                                            texts.directory.path().string())});
  const std::vector<data::SourceFile> files = source_files(recipe.data);
  REQUIRE(files.size() == 20);
  const auto tokenizer = open_tokenizer(recipe, files, nullptr);

  const std::vector<std::string_view> views(texts.training.begin(), texts.training.end());
  const auto expected =
      data::train_bpe(views, {.vocab_size = 300, .pattern = recipe.tokenizer.bpe()->pattern()});
  CHECK(tokenizer->to_json() == expected->to_json());
  CHECK(tokenizer->to_json().find("zy") == std::string::npos);
  CHECK(tokenizer->to_json().find("abc") != std::string::npos);
}

}  // namespace llmtrain::train
