#include "lib/tensor/dtype.hpp"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

namespace llmtrain {

namespace {

/// By the definition of binary16, in double.
double value_of(std::uint32_t bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  const int exponent = static_cast<int>((bits >> 10) & 0x1fu);
  const double fraction = (bits & 0x3ffu) / 1024.0;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : std::nan("");
  return sign * std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - 15);
}

f16 from_bits(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }

}  // namespace

TEST_CASE("every f16 has the value that IEEE 754 gives it, and comes back from it") {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float x = to_float(from_bits(bits));
    const double expected = value_of(bits);
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(x));
      REQUIRE(to_f16(x) == from_bits(bits | 0x200u));  // quiet, with its payload
      continue;
    }
    REQUIRE(x == expected);
    REQUIRE(std::signbit(x) == (bits >= 0x8000u));
    REQUIRE(to_f16(x) == from_bits(bits));
  }
}

// Between two neighbours: the nearer one, and the even one half-way. Half-way from the largest
// number to what would follow lies infinity.
TEST_CASE("floats between two f16 round to the nearer one, ties to the even one") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = value_of(bits);
    const double high = bits == 0x7bff ? 65536 : value_of(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: 12 bits
    for (const float sign : {1.0f, -1.0f}) {
      const std::uint32_t side = sign < 0 ? 0x8000u : 0;
      const float below = std::nextafterf(middle, 0.0f);
      const float above = std::nextafterf(middle, kInfinity);
      REQUIRE(to_f16(sign * below) == from_bits(side | bits));
      REQUIRE(to_f16(sign * above) == from_bits(side | (bits + 1)));
      REQUIRE(to_f16(sign * middle) == from_bits(side | (bits + (bits & 1u))));
    }
  }
  CHECK(to_f16(kInfinity) == from_bits(0x7c00));
  CHECK(to_f16(std::numeric_limits<float>::max()) == from_bits(0x7c00));
  CHECK(to_f16(static_cast<float>(kMaxF16)) == from_bits(0x7bff));
  CHECK(to_f16(std::numeric_limits<float>::denorm_min()) == from_bits(0));
  CHECK(to_f16(-0.0f) == from_bits(0x8000));
}

}  // namespace llmtrain
