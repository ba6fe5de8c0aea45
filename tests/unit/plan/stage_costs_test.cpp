// For what a pipeline's order is made.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/plan/pipeline.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::plan {

namespace {

parallel::ActionCosts costs_of(int tokens, std::string_view more = "", MeshShape mesh = {},
                               int rank = 0) {
  test::EngineRecipe recipe;
  const std::string text = fmt::format(
      "recipe: 1\n"
      "model: {{architecture: llama, vocab_size: 4096, hidden_size: 64, intermediate_size: 256, "
      "num_hidden_layers: 8, num_attention_heads: 4, num_key_value_heads: 4, "
      "max_position_embeddings: 2048}}\n"
      "training: {{seq_len: {}, micro_batch_size: 2, global_batch_size: 16, max_steps: 10}}\n{}",
      tokens, more);
  recipe::load(recipe, {.file = "test.yaml", .text = text});
  engine::EngineOptions options = recipe.options(7);
  options.pipeline.schedule = "v_half";
  options.pipeline.stages_per_rank = 2;
  mesh.sizes[static_cast<int>(Axis::pp)] = 2;
  return flop_costs(options, {.mesh = mesh, .rank = rank});
}

}  // namespace

TEST_CASE("products cost as much in F, I and W; attention has no W, and recomputing another F") {
  // Two products of 4 h^2 and three of h 4h per token, against 16 tokens of attention at most.
  const parallel::ActionCosts products = costs_of(16);
  CHECK(products.forward == 1);
  CHECK(products.input_grad == test::relative(1, 0.1));
  CHECK(products.weight_grad == test::relative(1, 0.1));

  // Of F per token 2 (4 + 12) h^2 are products and 2 t h attention, causal, whose way back has five
  // products to the two of the way there.
  const parallel::ActionCosts attention = costs_of(1024);
  const double h = 64, t = 1024;
  const double of_products = 2 * 16 * h * h, of_attention = 2 * t * h;
  const double forward = of_products + of_attention;
  CHECK(attention.input_grad == test::relative((of_products + 2.5 * of_attention) / forward, 0.1));
  CHECK(attention.weight_grad == test::relative(of_products / forward, 0.1));

  const parallel::ActionCosts twice = costs_of(16, "activation_checkpoint: {mode: full}\n");
  CHECK(twice.input_grad == test::relative(products.input_grad + 1, 0.1));
  CHECK(twice.weight_grad == test::relative(products.weight_grad, 0.02));
}

TEST_CASE("every rank finds the same costs of stages") {
  const MeshShape mesh{.sizes = {2, 2, 1, 1}};
  const parallel::ActionCosts first = costs_of(64, "", mesh);
  for (int rank = 1; rank < 8; ++rank) {
    CAPTURE(rank);
    const parallel::ActionCosts costs = costs_of(64, "", mesh, rank);
    CHECK(costs.forward == first.forward);
    CHECK(costs.input_grad == first.input_grad);
    CHECK(costs.weight_grad == first.weight_grad);
  }
}

}  // namespace llmtrain::plan
