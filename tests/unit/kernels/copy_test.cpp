#include "kernels/cpu/copy.hpp"

#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

namespace llmtrain::kernels {

TEST_CASE("copies past the caches have all bytes, and nothing beside them changes") {
  constexpr std::size_t kRoom = 5 << 20;
  std::mt19937 random(1);
  std::vector<std::byte> from(kRoom);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  for (const bool is_divided : {false, true}) {
    CAPTURE(is_divided);
    std::vector<std::byte> to(kRoom, std::byte{7});
    std::vector<std::byte> expected = to;
    std::vector<MemoryCopy> copies;
    std::size_t at = 3;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{64}, std::size_t{4099},
          (std::size_t{1} << 20), (std::size_t{3} << 20) + 5}) {
      const std::size_t source = random() % 100;
      copies.push_back({std::span(to).subspan(at, size), std::span(from).subspan(source, size)});
      for (std::size_t i = 0; i < size; ++i) expected[at + i] = from[source + i];
      at += size + 1 + size % 5;
    }
    REQUIRE(at <= kRoom);
    if (is_divided) {
      const std::size_t before = copies.size();
      copies = in_blocks(copies);
      CHECK(copies.size() > before);
    }
    for (const MemoryCopy& copy : copies) copy_past_caches(copy);
    CHECK(to == expected);
  }
}

}  // namespace llmtrain::kernels
