#include "lib/tensor/stochastic_rounding.hpp"

#include <cfloat>
#include <cmath>

#include <doctest/doctest.h>

namespace llmtrain {

namespace {

float rounded(float x, std::uint32_t word) { return to_float(round_stochastically(x, word)); }

}  // namespace

TEST_CASE("the mean over all words is the number itself") {
  // Two neighbours, of which the upper one is taken by as many of 2^16 halves of words as x is
  // above the lower one in units of 2^-16 of their distance.
  for (const float x : {1.0f + 0x1p-9f, 1.0f + 0x1.fffcp-8f, -3.1f, 0x1.234566p-120f, 0x1p-135f}) {
    CAPTURE(x);
    const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
    const float down = to_float(bf16{upper});
    const float up = to_float(bf16{static_cast<std::uint16_t>(upper + 1)});
    double sum = 0;
    for (std::uint32_t half = 0; half < 0x10000u; ++half) {
      const float y = rounded(x, half << 16 | 0x5a5au);
      REQUIRE((y == down || y == up));
      sum += y;
    }
    CHECK(sum / 0x1p16 == doctest::Approx(x).epsilon(1e-12));
  }
}

TEST_CASE("the mean over a stream's words is the number itself, within its error") {
  constexpr int kDraws = 100000;
  const PhiloxKey key = philox_key(7, "stochastic rounding", "w");
  const float x = 1 + 0x1.4p-9f;  // 5/16 of the way to the next
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    sum += rounded(x, philox_word(key, 3, static_cast<std::uint64_t>(i)));
  }
  // Five standard errors.
  const double p = 5.0 / 16, error = 0x1p-7 * std::sqrt(p * (1 - p) / kDraws);
  CHECK(std::abs(sum / kDraws - x) < 5 * error);
}

TEST_CASE("a bf16 stays as it is, and so do infinities and NaN") {
  for (const std::uint32_t word : {0u, 0x80000000u, 0xffffffffu}) {
    for (const float x : {0.0f, -0.0f, 1.0f, -1.5f, 0x1p-133f, INFINITY, -INFINITY}) {
      CHECK(std::bit_cast<std::uint32_t>(rounded(x, word)) == std::bit_cast<std::uint32_t>(x));
    }
    for (const std::uint32_t bits : {0x7f800001u, 0xff80ffffu, 0x7fffffffu, 0xffc00000u}) {
      CHECK(std::isnan(rounded(std::bit_cast<float>(bits), word)));
    }
    // Between the largest bf16 and infinity.
    CHECK(rounded(FLT_MAX, word) == 0x1.fep127f);
    CHECK(rounded(-FLT_MAX, word) == -0x1.fep127f);
  }
}

TEST_CASE("four elements share a word, and neighbours a half of it in either order of bytes") {
  const StochasticRounding words{
      .on = true, .key = philox_key(7, "rounding of states", "w#m"), .first = 5, .columns = 20};
  for (std::int64_t i = 0; i < 20; ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(i) + 5;
    const std::uint32_t word = philox_word(words.key, 3, index / 4);
    const std::uint32_t pair = index % 4 < 2 ? word & 0xffffu : word >> 16;
    CHECK(words.half(3, i) == (index % 2 == 0 ? (pair & 0xffu) << 8 | pair >> 8 : pair));
  }
  for (const float x : {1.0f + 0x1p-9f, -3.1f, 0x1.234566p-120f}) {
    CHECK(round_by_half(x, 0x9000u) == round_stochastically(x, 0x9000ffffu));
  }
}

TEST_CASE("elements of a part are numbered as in the whole") {
  // Columns 2 to 4 of rows 1 to 3 of [4, 7].
  const StochasticRounding part{.first = 9, .columns = 3, .stride = 7};
  const std::uint64_t expected[] = {9, 10, 11, 16, 17, 18, 23, 24, 25};
  for (std::int64_t i = 0; i < 9; ++i) CHECK(part.index(i) == expected[i]);
}

}  // namespace llmtrain
