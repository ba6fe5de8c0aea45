// What a plan says of the model, when a rank has a part of it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/plan/plan.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::plan {

TEST_CASE("work per token and checkpoint are those of the whole model, whatever a rank has of it") {
  test::EngineRecipe recipe;
  // Four ranks hold each of two key/value heads twice.
  const std::string text = fmt::format(
      "recipe: 1\nmodel: {{{}, max_position_embeddings: 16}}\n"
      "training: {{seq_len: 10, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}}\n",
      test::kSmallModels[1]);
  recipe::load(recipe, {.file = "test.yaml", .text = text});
  const auto plan_of = [&](const MeshShape& mesh) {
    return make_plan(recipe.options(7), 4,
                     engine::Target{.mesh = mesh, .rank = 1 % mesh[Axis::tp]});
  };
  const Plan one = plan_of({});
  const Plan four = plan_of({.sizes = {1, 4, 1, 1}});
  CHECK(four.model_flops_per_token == one.model_flops_per_token);
  CHECK(four.checkpoint_bytes == one.checkpoint_bytes);
  CHECK(four.parameters == one.parameters);
  CHECK(four.parameters_per_block == one.parameters_per_block);
  // What is the rank's own is less.
  CHECK(four.step.flops() < one.step.flops());
  const auto params = static_cast<std::size_t>(Category::params);
  CHECK(four.held[params] < one.held[params]);
}

}  // namespace llmtrain::plan
