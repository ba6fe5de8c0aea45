#include "lib/data/bpe_trainer.hpp"

#include <algorithm>
#include <omp.h>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/data/support.hpp"

namespace llmtrain::data {

namespace {

std::vector<std::string> learned(std::vector<std::string_view> documents, std::int64_t merges,
                                 std::int64_t min_count = 1) {
  BpeTrainingOptions options;
  options.vocab_size = 257 + merges;
  options.min_count = min_count;
  const auto vocab = train_bpe(documents, options)->definition().vocab;
  return {vocab.begin() + 257, vocab.end()};
}

}  // namespace

TEST_CASE("training merges the most frequent pair, ties by ids") {
  CHECK(learned({"ab ab ab cd cd"}, 1) == std::vector<std::string>{"ab"});
  // "ab", "cd" and the space before them: equal counts, so the smaller left id wins.
  CHECK(learned({"cd", "cd", "ab", "ab"}, 2) == std::vector<std::string>{"ab", "cd"});
  CHECK(learned({"ac", "ab"}, 2) == std::vector<std::string>{"ab", "ac"});
}

TEST_CASE("overlapping pairs are merged left to right") {
  CHECK(learned({"aaaa", "aaa"}, 3) == std::vector<std::string>{"aa", "aaa", "aaaa"});
  CHECK(learned({"ababab", "abab"}, 2) == std::vector<std::string>{"ab", "abab"});
}

TEST_CASE("pairs below min_count are not merged and the vocabulary stays smaller") {
  CHECK(learned({"ab ab", "xy"}, 10, 2) == std::vector<std::string>{"ab"});
}

TEST_CASE("the end token is 0 and the bytes follow in the order of their characters") {
  const std::vector<std::string_view> documents = {"x"};
  const auto tokenizer = train_bpe(documents, {.vocab_size = 257});
  CHECK(tokenizer->eos_id() == 0);
  CHECK(tokenizer->token_bytes(0) == "<|endoftext|>");
  CHECK(tokenizer->token_bytes(1) == "!");
  CHECK(tokenizer->token_bytes(189) == std::string_view("\0", 1));
  CHECK(tokenizer->vocab_size() == 257);
}

TEST_CASE("the result depends neither on threads nor on the order of documents") {
  std::vector<std::string> texts;
  for (std::uint64_t seed = 0; seed < 12; ++seed) texts.push_back(generated_document(seed));
  std::vector<std::string_view> documents(texts.begin(), texts.end());
  BpeTrainingOptions options;
  options.vocab_size = 800;
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::uint64_t expected = train_bpe(documents, options)->fingerprint();
  for (const int count : {2, 5}) {
    omp_set_num_threads(count);
    CHECK(train_bpe(documents, options)->fingerprint() == expected);
  }
  omp_set_num_threads(threads);
  std::reverse(documents.begin(), documents.end());
  CHECK(train_bpe(documents, options)->fingerprint() == expected);
}

TEST_CASE("training refuses empty text and impossible options") {
  const std::vector<std::string_view> empty = {"", ""};
  const std::vector<std::string_view> some = {"text"};
  CHECK_THROWS_AS(train_bpe(empty, {}), DataError);
  CHECK_THROWS_AS(train_bpe({}, {}), DataError);
  CHECK_THROWS_AS(train_bpe(some, {.vocab_size = 256}), RecipeError);
  CHECK_THROWS_AS(train_bpe(some, {.min_count = 0}), RecipeError);
  CHECK(contains(message_of<RecipeError>([&] { train_bpe(some, {.pattern = "gpt5"}); }),
                 "gpt2, llama3"));
}

TEST_CASE("progress is reported while tokens are made") {
  std::vector<std::string> texts = {generated_document(1)};
  const std::vector<std::string_view> documents(texts.begin(), texts.end());
  std::vector<std::int64_t> reported;
  BpeTrainingOptions options;
  options.vocab_size = 600;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    CHECK(total == 600);
    reported.push_back(done);
  };
  train_bpe(documents, options);
  CHECK(reported == std::vector<std::int64_t>{512});
}

}  // namespace llmtrain::data
