#include "lib/base/philox.hpp"

#include <bit>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"

namespace llmtrain {

TEST_CASE("philox4x32_10 gives the known answers of the Random123 distribution") {
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        PhiloxWords{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox4x32_10({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                      {0xffffffffu, 0xffffffffu}) ==
        PhiloxWords{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                      {0xa4093822u, 0x299f31d0u}) ==
        PhiloxWords{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("normal_quantile inverts the normal distribution function to double precision") {
  for (const double x : {-8.0, -5.5, -3.0, -1.0, -0.3, 0.0, 0.7, 1.5, 2.5, 4.0}) {
    const double p = 0.5 * std::erfc(-x / std::sqrt(2.0));
    CHECK(normal_quantile(p) == test::relative(x, 1e-10));
  }
}

namespace {
// How many of the values that normal_quantiles() has for these words are not normal_quantile()'s.
std::int64_t differing_quantiles(std::span<const std::uint32_t> words) {
  std::vector<double> values(words.size() + 1, -100.0);  // one more, which is left alone
  normal_quantiles(words, std::span(values).first(words.size()));
  std::int64_t different = values.back() != -100.0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const double expected = normal_quantile(unit_interval(words[i]));
    different += std::bit_cast<std::uint64_t>(values[i]) != std::bit_cast<std::uint64_t>(expected);
  }
  return different;
}
}  // namespace

TEST_CASE("normal_quantiles has the bits of normal_quantile") {
  std::vector<std::uint32_t> words;
  // Ends, middle, and both ends of the central part, where |p - 0.5| is 0.425.
  const auto low = static_cast<std::uint32_t>(0.075 * 0x1p32);
  for (const std::uint32_t near : {0u, 1u << 31, low, ~low}) {
    for (std::uint32_t i = 0; i < 200; ++i) words.push_back(near + i - 100);
  }
  // Ever closer to both ends, to the greatest r.
  for (std::uint32_t word = 1u << 31; word > 0; word -= word / 64 + 1) {
    words.push_back(word);
    words.push_back(~word);
  }
  words.resize(words.size() + 1'000'000);
  philox_words(philox_key(3, "test", "quantiles"), 0, 0, std::span(words).last(1'000'000));
  CHECK(differing_quantiles(words) == 0);
  for (std::size_t begin = 0; begin < 5; ++begin) {
    for (std::size_t count = 0; count <= 20; ++count) {
      REQUIRE(differing_quantiles(std::span(words).subspan(90 + begin, count)) == 0);
      REQUIRE(differing_quantiles(std::span(words).subspan(490 + begin, 500 + count)) == 0);
    }
  }
}

TEST_CASE("no word is beyond the parts of the quantile that normal_quantiles knows") {
  CHECK(std::sqrt(-std::log(unit_interval(0))) < 5.0);
  CHECK(unit_interval(0) == 1.0 - unit_interval(~0u));
}

TEST_CASE("philox_words has the words of every element, wherever it begins") {
  const PhiloxKey key = philox_key(3, "test", "words");
  const std::uint64_t step = 0x123456789abu;
  // The counters' second word changes behind 2^34 elements.
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 34) - 9}) {
    for (std::uint64_t begin = first; begin < first + 6; ++begin) {
      for (const std::size_t count : {0, 1, 2, 3, 4, 5, 7, 20, 508, 511, 512, 513, 517, 1600}) {
        std::vector<std::uint32_t> words(count + 1, 77);
        philox_words(key, step, begin, std::span(words).first(count));
        std::int64_t different = words.back() != 77;
        for (std::size_t i = 0; i < count; ++i) {
          different += words[i] != philox_word(key, step, begin + i);
        }
        REQUIRE(different == 0);
      }
    }
  }
}

TEST_CASE("philox_below stays below its bound and reaches both ends") {
  const PhiloxKey key = philox_key(1, "test", "x");
  bool low = false;
  bool high = false;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::uint64_t v = philox_below(key, 0, i, 7);
    REQUIRE(v < 7);
    low |= v == 0;
    high |= v == 6;
  }
  CHECK(low);
  CHECK(high);
}

}  // namespace llmtrain
