#include "lib/engine/decoder_session.hpp"

#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::engine {

namespace {

using test::kSmallModels;
using test::small_batch;
using test::SmallEngine;

const std::vector<std::int32_t> kText{3, 14, 15, 9, 26, 5, 30, 8, 9, 7};

double loss_of(const std::vector<float>& logits, std::int32_t target) {
  double sum = 0;
  for (const float z : logits) sum += std::exp(double{z});
  return std::log(sum) - double{logits[static_cast<std::size_t>(target)]};
}

}  // namespace

TEST_CASE("decoding token by token loses what an evaluation of the text loses") {
  for (const std::string_view model : kSmallModels) {
    SmallEngine engine(model);
    DecoderSession session(*engine, 12);
    double loss = 0;
    for (std::size_t i = 0; i + 1 < kText.size(); ++i) {
      loss += loss_of(session.append(std::span(kText).subspan(i, 1)), kText[i + 1]);
    }
    CHECK(session.length() == 9);
    CHECK(loss == test::relative(engine->evaluate(small_batch({kText})).loss_sum, 1e-5));
  }
}

TEST_CASE("logits do not depend on how the text is cut into appended parts") {
  for (const std::string_view model : kSmallModels) {
    SmallEngine engine(model);
    DecoderSession whole(*engine, 10);
    const std::vector<float> expected = whole.append(kText);
    for (const std::size_t cut : {1, 4, 9}) {
      DecoderSession parts(*engine, 10);
      parts.append(std::span(kText).first(cut));
      const std::vector<float> found = parts.append(std::span(kText).subspan(cut));
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] == test::relative(expected[i], 1e-5));
      }
    }
  }
}

TEST_CASE("a session refuses more tokens than its cache holds") {
  SmallEngine engine(kSmallModels[0]);
  DecoderSession session(*engine, 4);
  session.append(std::span(kText).first(3));
  CHECK_THROWS_WITH_AS(session.append(std::span(kText).first(2)), doctest::Contains("4 positions"),
                       InternalError);
}

}  // namespace llmtrain::engine
