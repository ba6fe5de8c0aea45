#include "lib/models/rope.hpp"

#include <doctest/doctest.h>

namespace llmtrain::models {

namespace {

std::vector<double> yarn_frequencies(std::int64_t original_length, double beta_fast) {
  const RopeScaling scaling{.type = "yarn",
                            .factor = 4,
                            .original_max_position_embeddings = original_length,
                            .beta_fast = beta_fast};
  return rope_angles(scaling, {.rotary_dim = 8, .max_position_embeddings = 64}).frequencies;
}

void check_near(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-12));
  }
}

}  // namespace

// Expected values are those of transformers' formula, computed apart.

TEST_CASE("YaRN's blend may end beyond the last component, up to the width of a head") {
  // From component 0 to 6 of a head of 8, which has 4: the last is stretched by half.
  check_near(yarn_frequencies(1 << 20, 20000), {1.0, 0.0875, 0.0075, 0.000625});
  // From 2 to 7, where 9 is beyond the width.
  check_near(yarn_frequencies(1 << 26, 100000), {1.0, 0.1, 0.01, 0.00085});
}

TEST_CASE("YaRN's blend of no width leaves the first component and stretches the others") {
  // Fewer positions than one turn of the fastest component: both ends are component 0.
  check_near(yarn_frequencies(6, 32), {1.0, 0.025, 0.0025, 0.00025});
}

}  // namespace llmtrain::models
