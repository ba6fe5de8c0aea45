#include "lib/train/disk_room.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/recipe/load.hpp"
#include "lib/train/recipe.hpp"
#include "tests/unit/train/tiny_recipe.hpp"

namespace llmtrain::train {

namespace {

std::optional<std::uint64_t> most(std::string_view section, std::optional<std::int64_t> steps) {
  Recipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = fmt::format("{}checkpoint: {{{}}}\n", kTinyRecipe, section)});
  return most_checkpoints(recipe.checkpoint, steps);
}

}  // namespace

TEST_CASE("a run has as many checkpoints at a time as it keeps, and the one that it writes") {
  CHECK(most("interval: 2, keep_latest: 3", 100) == 4u);
  CHECK(most("interval: 2, keep_latest: 3, keep_every: 10", 100) == 14u);
  CHECK(most("interval: 10min, keep_latest: 3", {}) == 4u);
  // No more than it makes.
  CHECK(most("interval: 50, keep_latest: 9", 100) == 3u);
  CHECK(most("interval: 2, keep_latest: null", 100) == 51u);
  CHECK(most("interval: null, keep_latest: null", {}) == 1u);
  CHECK(most("interval: null, keep_latest: null, keep_every: 25", 100) == 5u);
  // A clock decides, or nobody knows.
  CHECK_FALSE(most("interval: 10min, keep_latest: null", 100).has_value());
  CHECK_FALSE(most("interval: 2, keep_latest: null", {}).has_value());
  CHECK_FALSE(most("interval: 2, keep_latest: 3, keep_every: 10", {}).has_value());
}

}  // namespace llmtrain::train
