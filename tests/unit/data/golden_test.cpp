// Against Hugging Face's tokenizers; golden/ is made by scripts/golden/tokenizer_golden.py.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/data/bpe_trainer.hpp"
#include "lib/data/tokenizer_json.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

std::filesystem::path golden(std::string_view name) { return test_file("unit/data/golden") / name; }

std::uint64_t fnv1a(std::uint64_t value, std::span<const std::int32_t> ids) {
  for (const std::byte byte : std::as_bytes(ids)) {
    value = (value ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
  }
  return value;
}

}  // namespace

TEST_CASE("a tokenizer trained by Hugging Face gives its ids on adversarial text") {
  const auto expected = nlohmann::json::parse(read_file(golden("ids.json")));
  for (const std::string name : {"gpt2", "llama3"}) {
    CAPTURE(name);
    const auto tokenizer = load_tokenizer_json(golden(name + ".json"));
    std::uint64_t hash = 0xCBF29CE484222325u;
    std::size_t tokens = 0;
    for (std::uint64_t seed = 1000; seed < 1040; ++seed) {
      const std::string text = generated_document(seed);
      const std::vector<std::int32_t> ids = tokenizer->encode(text);
      REQUIRE(tokenizer->decode(ids) == text);
      hash = fnv1a(hash, ids);
      tokens += ids.size();
    }
    CHECK(tokens == expected[name]["tokens"].get<std::size_t>());
    CHECK(fmt::format("{:016x}", hash) == expected[name]["fnv1a"].get<std::string>());
  }
}

TEST_CASE("training learns the vocabulary and the merges that Hugging Face's trainer learns") {
  std::vector<std::string> texts;
  for (std::uint64_t seed = 0; seed < 20; ++seed) texts.push_back(generated_document(seed));
  const std::vector<std::string_view> documents(texts.begin(), texts.end());
  for (const std::string name : {"gpt2", "llama3"}) {
    CAPTURE(name);
    BpeTrainingOptions options;
    options.vocab_size = 700;
    options.pattern = name;
    const auto trained = train_bpe(documents, options);
    const auto theirs = load_tokenizer_json(golden(name + ".json"));
    CHECK(trained->definition().vocab == theirs->definition().vocab);
    CHECK(trained->definition().pre_tokenizer.patterns ==
          theirs->definition().pre_tokenizer.patterns);
    REQUIRE(trained->definition().merges.size() == theirs->definition().merges.size());
    for (std::size_t i = 0; i < trained->definition().merges.size(); ++i) {
      CHECK(trained->definition().merges[i].left == theirs->definition().merges[i].left);
      CHECK(trained->definition().merges[i].right == theirs->definition().merges[i].right);
    }
  }
}

}  // namespace llmtrain::data
