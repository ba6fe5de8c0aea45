#include "lib/engine/geometry.hpp"

#include <doctest/doctest.h>

#include "lib/recipe/load.hpp"

namespace llmtrain::engine {

namespace {

struct TrainingRecipe : recipe::Section {
  recipe::Sub<TrainingSection> training{this, "training", "training"};
};

BatchGeometry geometry(const std::string& keys) {
  TrainingRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml",
                        .text = "recipe: 1\ntraining: {seq_len: 8, max_steps: 9, " + keys + "}\n"});
  return BatchGeometry(recipe.training);
}

std::vector<std::int64_t> first_sizes(const BatchGeometry& g, std::int64_t steps) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t step = 1; step <= steps; ++step) sizes.push_back(g.samples_in_step(step));
  return sizes;
}

const std::string kRamp =
    "micro_batch_size: 2, global_batch_size: 8, "
    "rampup_batch_size: {start: 2, increment: 2, samples: 30}";

}  // namespace

TEST_CASE("a batch ramp takes each size until its share of the samples is taken") {
  // Shares end at samples 10, 20 and 30.
  CHECK(first_sizes(geometry(kRamp), 13) ==
        std::vector<std::int64_t>{2, 2, 2, 2, 2, 4, 4, 4, 6, 6, 8, 8, 8});
  CHECK(first_sizes(geometry("micro_batch_size: 2, global_batch_size: 6"), 3) ==
        std::vector<std::int64_t>{6, 6, 6});
  CHECK(geometry(kRamp).samples_per_rank(9) == geometry(kRamp).samples_in_step(9));
}

TEST_CASE("samples before a step are those of all steps before it") {
  for (const std::string& keys :
       {kRamp, std::string("micro_batch_size: 2, global_batch_size: 6")}) {
    const BatchGeometry g = geometry(keys);
    std::uint64_t samples = 0;
    for (std::int64_t step = 1; step <= 40; ++step) {
      CHECK(g.samples_before(step) == samples);
      CHECK(g.tokens_before(step) == 8 * samples);
      samples += static_cast<std::uint64_t>(g.samples_in_step(step));
    }
  }
}

TEST_CASE("a number of samples takes the fewest steps that hold it") {
  const BatchGeometry g = geometry(kRamp);
  for (std::uint64_t samples = 1; samples < 80; ++samples) {
    CAPTURE(samples);
    const std::int64_t steps = g.steps_for_samples(samples);
    CHECK(g.samples_before(steps + 1) >= samples);
    CHECK(g.samples_before(steps) < samples);
  }
}

}  // namespace llmtrain::engine
