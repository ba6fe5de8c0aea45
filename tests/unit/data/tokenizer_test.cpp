#include "lib/data/tokenizer.hpp"

#include <algorithm>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/data/tokenizer_json.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

std::shared_ptr<const BpeTokenizer> small_bpe(std::string pattern = "gpt2") {
  std::vector<std::string> texts;
  for (std::uint64_t seed = 0; seed < 8; ++seed) texts.push_back(generated_document(seed));
  const std::vector<std::string_view> documents(texts.begin(), texts.end());
  BpeTrainingOptions options;
  options.vocab_size = 600;
  options.pattern = std::move(pattern);
  return train_bpe(documents, options);
}

std::string random_bytes(SplitMix64& random, std::size_t size) {
  std::string bytes;
  for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(random());
  return bytes;
}

/// The definition of BPE, without any of the tricks: the pair of lowest rank, leftmost first.
std::vector<std::int32_t> merge_plainly(const BpeDefinition& definition,
                                        std::vector<std::int32_t> symbols) {
  while (true) {
    std::size_t best_rank = definition.merges.size();
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        const Merge& m = definition.merges[rank];
        if (m.left == symbols[i] && m.right == symbols[i + 1]) {
          best_rank = rank;
          best_at = i;
        }
      }
    }
    if (best_rank == definition.merges.size()) return symbols;
    symbols[best_at] = definition.merges[best_rank].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

}  // namespace

TEST_CASE("the byte tokenizer gives each byte its value and the end token 256") {
  const auto tokenizer = make_tokenizer({.type = "bytes", .path = {}});
  CHECK(tokenizer->vocab_size() == 257);
  CHECK(tokenizer->eos_id() == 256);
  CHECK(!tokenizer->bos_id());
  CHECK(tokenizer->encode("A\xFF\n") == std::vector<std::int32_t>{65, 255, 10});
  CHECK(tokenizer->encode("a<|endoftext|>b") == std::vector<std::int32_t>{97, 256, 98});
  CHECK(tokenizer->encode("").empty());
}

TEST_CASE("decoding the tokens of any bytes gives the bytes back") {
  SplitMix64 random(1);
  for (const auto& tokenizer :
       {std::static_pointer_cast<const Tokenizer>(small_bpe("gpt2")),
        std::static_pointer_cast<const Tokenizer>(small_bpe("llama3")), make_byte_tokenizer()}) {
    for (std::size_t size = 0; size < 400; size += 1 + size / 8) {
      const std::string bytes = random_bytes(random, size);
      CHECK(tokenizer->decode(tokenizer->encode(bytes)) == bytes);
    }
    for (std::uint64_t seed = 50; seed < 60; ++seed) {
      std::string text = generated_document(seed);
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
      for (int i = 0; i < 50; ++i) text[random() % text.size()] = static_cast<char>(random());
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    }
  }
}

TEST_CASE("every token of a text stands for bytes whose lengths add up to the text") {
  const auto tokenizer = small_bpe();
  const std::string text = generated_document(77);
  std::size_t bytes = 0;
  for (const std::int32_t id : tokenizer->encode(text)) bytes += tokenizer->token_bytes(id).size();
  CHECK(bytes == text.size());
  CHECK_THROWS_AS(tokenizer->token_bytes(-1), DataError);
  CHECK_THROWS_AS(tokenizer->token_bytes(600), DataError);
}

TEST_CASE("merging short and long pieces follows the definition of BPE") {
  const auto tokenizer = small_bpe();
  SplitMix64 random(3);
  // No split pattern cuts a run of letters, so one piece is as long as the text.
  for (const std::size_t size : {1u, 2u, 5u, 23u, 24u, 95u, 96u, 97u, 300u}) {
    std::string text;
    const std::string_view words[] = {"return", "iterator", "namespace", "aaa", "x", "const"};
    while (text.size() < size) text += words[random() % 6];
    text.resize(size);
    std::vector<std::int32_t> symbols;
    for (const char c : text) symbols.push_back(tokenizer->encode(std::string_view(&c, 1)).front());
    CAPTURE(text);
    CHECK(tokenizer->encode(text) == merge_plainly(tokenizer->definition(), symbols));
  }
}

TEST_CASE("added tokens are found leftmost and longest, normalized ones in what is left") {
  BpeDefinition definition = small_bpe()->definition();
  const auto size = static_cast<std::int32_t>(definition.vocab.size());
  definition.added_tokens.push_back({size, "<a>", false, true});
  definition.added_tokens.push_back({size + 1, "<a><b>", false, true});
  definition.added_tokens.push_back({size + 2, "c<a", true, false});
  definition.added_tokens.push_back({size + 3, "\xC3\xA9t", true, false});
  const BpeTokenizer tokenizer(definition);
  const std::int32_t c = tokenizer.encode("c").front();
  CHECK(tokenizer.encode("<a><b>") == std::vector<std::int32_t>{size + 1});
  CHECK(tokenizer.encode("<a><a>") == std::vector<std::int32_t>{size, size});
  CHECK(tokenizer.encode("c<a>") == std::vector<std::int32_t>{c, size});
  CHECK(tokenizer.encode("c<a\xC3\xA9t") == std::vector<std::int32_t>{size + 2, size + 3});
  CHECK(tokenizer.vocab_size() == size + 4);
}

TEST_CASE("ignore_merges takes a piece that is a token as a whole") {
  BpeDefinition definition = small_bpe()->definition();
  const auto id = static_cast<std::int32_t>(definition.vocab.size());
  definition.vocab.emplace_back("zqzqz");
  CHECK(BpeTokenizer(definition).encode("zqzqz").size() > 1);
  definition.ignore_merges = true;
  CHECK(BpeTokenizer(definition).encode("zqzqz") == std::vector<std::int32_t>{id});
  CHECK(BpeTokenizer(definition).encode("zqzqzz").size() > 1);
}

TEST_CASE("a saved tokenizer loads as the same tokenizer") {
  const TemporaryDirectory directory;
  BpeDefinition definition = small_bpe("llama3")->definition();
  const auto size = static_cast<std::int32_t>(definition.vocab.size());
  definition.added_tokens.push_back({size, "<s>", false, true});
  definition.added_tokens.push_back({size + 1, "</s>", true, false});
  definition.bos_id = size;
  definition.eos_id = size + 1;
  definition.ignore_merges = true;
  const std::shared_ptr<const Tokenizer> tokenizers[] = {
      std::make_shared<const BpeTokenizer>(definition), small_bpe("gpt2"), make_byte_tokenizer()};
  for (const auto& tokenizer : tokenizers) {
    save_tokenizer(*tokenizer, directory.path());
    const auto loaded = make_tokenizer({.type = "bpe", .path = directory.path()});
    CHECK(loaded->fingerprint() == tokenizer->fingerprint());
    CHECK(loaded->to_json() == tokenizer->to_json());
    CHECK(loaded->eos_id() == tokenizer->eos_id());
    CHECK(loaded->bos_id() == tokenizer->bos_id());
    CHECK(loaded->vocab_size() == tokenizer->vocab_size());
    const std::string text = generated_document(5);
    CHECK(loaded->encode(text) == tokenizer->encode(text));
  }
}

TEST_CASE("tokenizer.json is written last, so that it marks a whole tokenizer") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path() / "tokenizer_config.json");
  CHECK_THROWS(save_tokenizer(*small_bpe(), directory.path()));
  CHECK(!std::filesystem::exists(directory.path() / "tokenizer.json"));
}

TEST_CASE("the fingerprint changes with the end token, a merge and a pattern") {
  const BpeDefinition definition = small_bpe()->definition();
  const std::uint64_t fingerprint = BpeTokenizer(definition).fingerprint();
  BpeDefinition other = definition;
  other.eos_id = 1;
  CHECK(BpeTokenizer(other).fingerprint() != fingerprint);
  other = definition;
  std::swap(other.merges[0], other.merges[1]);
  CHECK(BpeTokenizer(other).fingerprint() != fingerprint);
  other = definition;
  other.pre_tokenizer.patterns = {std::string(kLlama3Pattern)};
  CHECK(BpeTokenizer(other).fingerprint() != fingerprint);
  CHECK(BpeTokenizer(definition).fingerprint() == fingerprint);
}

TEST_CASE("encoding many texts at once equals encoding them one by one") {
  const auto tokenizer = small_bpe();
  std::vector<std::string> texts;
  for (std::uint64_t seed = 0; seed < 30; ++seed) texts.push_back(generated_document(seed));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto all = encode_all(*tokenizer, views);
  REQUIRE(all.size() == texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) CHECK(all[i] == tokenizer->encode(texts[i]));
}

TEST_CASE("definitions that contradict themselves are refused") {
  const BpeDefinition good = small_bpe()->definition();
  const auto refused = [&](const auto& break_it) {
    BpeDefinition bad = good;
    break_it(bad);
    return message_of<DataError>([&] { BpeTokenizer tokenizer(bad); });
  };
  CHECK(contains(refused([](auto& d) {
                   d.merges.clear();
                   d.vocab[1].clear();
                 }),
                 "no token for byte"));
  CHECK(contains(refused([](auto& d) { d.merges[0].merged = 300; }), "merge"));
  CHECK(contains(refused([](auto& d) { d.merges[0].left = -1; }), "not all are tokens"));
  CHECK(contains(refused([](auto& d) { d.added_tokens[0].id = 5; }), "another token"));
  CHECK(contains(refused([](auto& d) {
                   d.added_tokens.push_back({900, "", false, true});
                 }),
                 "empty"));
  CHECK(contains(refused([](auto& d) { d.added_tokens.push_back(d.added_tokens[0]); }), "twice"));
  CHECK(contains(refused([](auto& d) { d.eos_id = 12345; }), "not in the vocabulary"));
  CHECK(contains(refused([](auto& d) { d.pre_tokenizer.patterns = {"("}; }), "pattern"));
  CHECK(contains(message_of<RecipeError>([] { make_tokenizer({.type = "word", .path = {}}); }),
                 "bytes, bpe"));
}

}  // namespace llmtrain::data
