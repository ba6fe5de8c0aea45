#include "lib/data/permutation.hpp"

#include <vector>

#include <doctest/doctest.h>

namespace llmtrain::data {

TEST_CASE("a permutation reaches every element once, whatever the size") {
  const PhiloxKey key = philox_key(1, "shuffle", "samples");
  for (const std::uint64_t size :
       {1u, 2u, 3u, 4u, 5u, 7u, 16u, 17u, 63u, 64u, 65u, 1000u, 4097u, 65537u}) {
    const Permutation permutation(key, 3, size);
    std::vector<bool> reached(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t value = permutation(i);
      REQUIRE(value < size);
      REQUIRE(!reached[value]);
      reached[value] = true;
    }
  }
}

TEST_CASE("epochs and seeds give different orders and the same one gives the same order") {
  constexpr std::uint64_t kSize = 1001;
  const PhiloxKey key = philox_key(1, "shuffle", "samples");
  const auto equal_places = [&](const Permutation& a, const Permutation& b) {
    int equal = 0;
    for (std::uint64_t i = 0; i < kSize; ++i) equal += a(i) == b(i) ? 1 : 0;
    return equal;
  };
  const Permutation first(key, 0, kSize);
  CHECK(equal_places(first, Permutation(key, 0, kSize)) == kSize);
  // Two random orders agree in one place on average.
  CHECK(equal_places(first, Permutation(key, 1, kSize)) < 12);
  CHECK(equal_places(first, Permutation(philox_key(2, "shuffle", "samples"), 0, kSize)) < 12);
}

TEST_CASE("neighbours are spread evenly: chi-square of 16 by 16 cells") {
  constexpr std::uint64_t kSize = 16 * 4096;
  const Permutation permutation(philox_key(7, "shuffle", "samples"), 0, kSize);
  std::vector<int> cells(256);
  for (std::uint64_t i = 0; i < kSize; ++i) ++cells[(i / 4096) * 16 + permutation(i) / 4096];
  double chi_square = 0;
  for (const int count : cells) chi_square += (count - 256.0) * (count - 256.0) / 256.0;
  // 225 degrees of freedom: mean 225, standard deviation 21.
  CHECK(chi_square > 130);
  CHECK(chi_square < 330);
}

TEST_CASE("a huge permutation is evaluated in place") {
  constexpr std::uint64_t kSize = (std::uint64_t{1} << 61) + 12345;
  const Permutation permutation(philox_key(7, "shuffle", "samples"), 0, kSize);
  CHECK(permutation(0) < kSize);
  CHECK(permutation(kSize - 1) < kSize);
  CHECK(permutation(0) != permutation(kSize - 1));
}

}  // namespace llmtrain::data
