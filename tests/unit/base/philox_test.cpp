#include "lib/base/philox.hpp"

#include <cmath>

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
