#include "lib/tensor/split_master.hpp"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

namespace llmtrain {

namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Low halves around everything that rounding asks for.
constexpr std::uint32_t kLows[] = {0, 1, 2, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xfffe, 0xffff};

}  // namespace

TEST_CASE("every master that is a number comes back from its halves, bit by bit") {
  std::int64_t numbers = 0;
  for (std::uint32_t high = 0; high <= 0xffff; ++high) {
    for (const std::uint32_t low : kLows) {
      const float master = from_bits(high << 16 | low);
      const float joined = join_master(split_master(master));
      if (std::isnan(master)) {
        REQUIRE(std::isnan(joined));
        REQUIRE(std::isnan(to_float(split_master(master).copy)));
        continue;
      }
      ++numbers;
      REQUIRE(std::bit_cast<std::uint32_t>(joined) == (high << 16 | low));
    }
  }
  // All but those with the exponent of NaN; the two infinities are numbers here.
  CHECK(numbers == (0x10000 - 2 * 128) * 10 + 2);
}

TEST_CASE("the copy is the master rounded to nearest, ties away from zero") {
  for (std::uint32_t high = 0; high <= 0xffff; ++high) {
    for (const std::uint32_t low : kLows) {
      const float master = from_bits(high << 16 | low);
      if (std::isnan(master)) continue;
      const bf16 copy = split_master(master).copy;
      if (low == 0x8000) {
        REQUIRE(std::abs(to_float(copy)) > std::abs(master));
      } else {
        REQUIRE(copy == to_bf16(master));
      }
    }
  }
}

TEST_CASE("halves of carries, infinities and NaNs") {
  CHECK(split_master(1.0f) == MasterParts{{0x3f80}, 0});
  CHECK(split_master(from_bits(0x3f80ffff)) == MasterParts{{0x3f81}, 0xffff});
  // A carry into the exponent, and one out of the largest number.
  CHECK(split_master(from_bits(0x3fffffff)) == MasterParts{{0x4000}, 0xffff});
  const float largest = std::numeric_limits<float>::max();
  CHECK(std::isinf(to_float(split_master(largest).copy)));
  CHECK(join_master(split_master(largest)) == largest);
  CHECK(join_master(split_master(-INFINITY)) == -INFINITY);
  CHECK(std::signbit(join_master(split_master(-0.0f))));
  // The NaN that CUDA makes would carry into minus zero, one of low bits only into infinity.
  for (const std::uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0x7fc00000u}) {
    CHECK(std::isnan(to_float(split_master(from_bits(nan)).copy)));
    CHECK(std::isnan(join_master(split_master(from_bits(nan)))));
  }
  CHECK(std::bit_cast<std::uint32_t>(join_master(split_master(from_bits(0xffc00000)))) ==
        0xffc00000);
}

}  // namespace llmtrain
