// What is made of additions, products, quotients and roots alone beside the library's functions.
#include "lib/base/plain_normal.hpp"

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

namespace llmtrain {

namespace {

/// |found - expected| over the larger of |expected| and `least`.
double error_of(double found, double expected, double least) {
  return std::abs(found - expected) / std::max(std::abs(expected), least);
}

}  // namespace

TEST_CASE("plain logarithms and exponentials are the library's to a few units in the last place") {
  double of_log = 0, of_exp = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double at = unit_interval(philox_word({1, 2}, 0, static_cast<std::uint64_t>(i)));
    const double x = std::ldexp(0.5 + at, i % 200 - 100), y = (at - 0.5) * (i % 7 == 0 ? 1000 : 8);
    of_log = std::max(of_log, error_of(plain_log(x), std::log(x), 0.69));
    of_exp = std::max(of_exp, error_of(plain_exp(y), std::exp(y), 0));
  }
  CHECK(of_log < 4e-16);
  CHECK(of_exp < 2e-15);
  CHECK(plain_log(1) == 0);
  CHECK(plain_exp(0) == 1);
  // Whole powers of two, and neighbours of the root of two.
  for (const double x : {0x1p-33, 0.5, 2.0, 0x1p60, 1.4142135623730950, 1.4142135623730952}) {
    CHECK(error_of(plain_log(x), std::log(x), 0.3) < 4e-16);
  }
}

TEST_CASE("the plain normal number of a word is its normal quantile") {
  std::vector<std::uint32_t> words;
  const auto low = static_cast<std::uint32_t>(0.075 * 0x1p32);  // ends of the central part
  for (const std::uint32_t near : {0u, 1u << 31, low, ~low}) {
    for (std::uint32_t i = 0; i < 200; ++i) words.push_back(near + i - 100);
  }
  words.resize(words.size() + 200'000);
  philox_words(philox_key(3, "test", "normals"), 0, 0, std::span(words).last(200'000));
  double largest = 0;
  for (const std::uint32_t word : words) {
    const double expected = normal_quantile(unit_interval(word));
    largest = std::max(largest, error_of(plain_normal(word), expected, 1e-3));
    CHECK(std::signbit(plain_normal(word)) == std::signbit(expected));
  }
  CHECK(largest < 2e-15);
}

}  // namespace llmtrain
