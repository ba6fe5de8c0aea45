#include "lib/train/generate.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "tests/support/small_engine.hpp"

namespace llmtrain::train {

namespace {

// Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1.
const std::vector<float> kLogits{std::log(0.1F), std::log(0.4F), std::log(0.2F), std::log(0.3F)};

// Share of the words, in even steps over their range, that select each token.
std::map<std::int32_t, double> shares(const std::vector<float>& logits, GenerateOptions options) {
  constexpr std::uint64_t kWords = 1 << 16;
  std::map<std::int32_t, double> shares;
  for (std::uint64_t i = 0; i < kWords; ++i) {
    const auto word = static_cast<std::uint32_t>((i << 16) + (1 << 15));
    shares[sample_token(logits, options, word)] += 1.0 / kWords;
  }
  return shares;
}

void check_shares(const std::map<std::int32_t, double>& found,
                  const std::map<std::int32_t, double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [token, share] : expected) {
    CAPTURE(token);
    REQUIRE(found.contains(token));
    CHECK(std::abs(found.at(token) - share) < 1e-4);
  }
}

}  // namespace

TEST_CASE("tokens are drawn with their probabilities at the temperature") {
  check_shares(shares(kLogits, {.temperature = 1}), {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  // Squared and normalised: 0.01, 0.16, 0.04, 0.09 of 0.3.
  check_shares(shares(kLogits, {.temperature = 0.5}),
               {{0, 1 / 30.}, {1, 16 / 30.}, {2, 4 / 30.}, {3, 9 / 30.}});
  check_shares(shares(kLogits, {.temperature = 0}), {{1, 1}});
}

TEST_CASE("top_k keeps the k most probable tokens") {
  check_shares(shares(kLogits, {.temperature = 1, .top_k = 2}), {{1, 4 / 7.}, {3, 3 / 7.}});
  check_shares(shares(kLogits, {.temperature = 1, .top_k = 1}), {{1, 1}});
  check_shares(shares(kLogits, {.temperature = 1, .top_k = 9}),
               {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
}

TEST_CASE("top_p keeps the fewest tokens that reach it, after top_k") {
  check_shares(shares(kLogits, {.temperature = 1, .top_p = 0.3}), {{1, 1}});
  check_shares(shares(kLogits, {.temperature = 1, .top_p = 0.5}), {{1, 4 / 7.}, {3, 3 / 7.}});
  check_shares(shares(kLogits, {.temperature = 1, .top_p = 0.85}),
               {{1, 4 / 9.}, {2, 2 / 9.}, {3, 3 / 9.}});
  // Of the kept two the first has 4/7.
  check_shares(shares(kLogits, {.temperature = 1, .top_k = 2, .top_p = 0.55}), {{1, 1}});
}

TEST_CASE("equal logits: the smaller id; not a number: an answer all the same") {
  const std::vector<float> equal{1, 2, 2, 2};
  check_shares(shares(equal, {.temperature = 0}), {{1, 1}});
  check_shares(shares(equal, {.temperature = 1, .top_k = 2}), {{1, 0.5}, {2, 0.5}});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(sample_token(std::vector<float>{nan, nan, nan}, {.temperature = 1}, 7) == 0);
}

TEST_CASE("every token is drawn with a word of its own, which the seed decides") {
  // To this model all bytes are all but equally probable.
  test::SmallEngine engine(
      "architecture: gpt2, vocab_size: 257, hidden_size: 12, num_hidden_layers: 1, "
      "num_attention_heads: 2, initializer_range: 1.0e-6");
  const auto tokenizer = data::make_byte_tokenizer();
  const auto text = [&](std::uint64_t seed) {
    return generate(*engine, *tokenizer, "a", {.max_tokens = 12, .temperature = 1, .seed = seed});
  };
  const std::string first = text(1);
  CHECK(std::set<char>(first.begin(), first.end()).size() > 6);
  CHECK(text(1) == first);
  CHECK(text(2) != first);
}

TEST_CASE("nothing begins under options that are refused") {
  test::SmallEngine engine(
      "architecture: gpt2, vocab_size: 257, hidden_size: 12, num_hidden_layers: 1, "
      "num_attention_heads: 2");
  const auto tokenizer = data::make_byte_tokenizer();
  int starts = 0;
  const auto text = [&](std::string_view prompt, double temperature) {
    generate(*engine, *tokenizer, prompt,
             {.max_tokens = 2, .temperature = temperature, .on_start = [&] { ++starts; }});
  };
  CHECK_THROWS_AS(text("a", -1), RecipeError);
  CHECK_THROWS_AS(text(std::string(200, 'x'), 1), RecipeError);
  CHECK(starts == 0);
  text("a", 1);
  CHECK(starts == 1);
}

}  // namespace llmtrain::train
