// data batches: what the steps of a run read, for other programs.
#include <cstring>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

constexpr std::size_t kLength = 16, kSamplesOfStep = 4;

/// Tokens of a sample, then what they predict.
std::vector<std::int32_t> batches(const Workspace& here, int steps, const char* seed) {
  const auto written =
      here.call({"data", "batches", "recipe.yaml", "--steps", std::to_string(steps), "--output",
                 "batches.bin", std::string("run.seed=") + seed});
  INFO(written.output);
  REQUIRE(written.exit_code == 0);
  const std::string content = read_file(here.path / "batches.bin");
  std::vector<std::int32_t> values(content.size() / sizeof(std::int32_t));
  std::memcpy(values.data(), content.data(), content.size());
  REQUIRE(values.size() == static_cast<std::size_t>(steps) * kSamplesOfStep * 2 * kLength);
  return values;
}

}  // namespace

TEST_CASE("batches of a run: each row predicts the next one, in the order of the seed") {
  const Workspace here(kTinyRecipe);
  const std::vector<std::int32_t> values = batches(here, 5, "5");
  std::size_t rows = 0, next = 0;
  for (std::size_t sample = 0; sample < values.size(); sample += 2 * kLength) {
    for (std::size_t i = 0; i + 1 < kLength; ++i) {
      ++rows;
      next += values[sample + kLength + i] == values[sample + i + 1] ? 1 : 0;
    }
  }
  CHECK(next > rows * 9 / 10);  // but at a document's end
  // Later steps follow; another seed has another order.
  std::vector<std::int32_t> longer = batches(here, 7, "5");
  longer.resize(values.size());
  CHECK(longer == values);
  CHECK(batches(here, 5, "6") != values);
}

}  // namespace llmtrain
