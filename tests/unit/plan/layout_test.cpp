// What a plan says of the model, when a rank has a part of it.
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/plan/plan.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::plan {

namespace {

// Two data ranks, two blocks, two micro-batches each.
Plan plan_of_two(int zero, std::optional<DType> grad_reduce = std::nullopt, int rank = 0) {
  test::EngineRecipe recipe;
  const std::string text = fmt::format(
      "recipe: 1\nmodel: {{{}, max_position_embeddings: 16}}\n"
      "training: {{seq_len: 10, micro_batch_size: 1, global_batch_size: 4, max_steps: 10}}\n",
      test::kSmallModels[1]);
  recipe::load(recipe, {.file = "test.yaml", .text = text});
  engine::EngineOptions options = recipe.options(7);
  options.zero = zero;
  options.grad_reduce = grad_reduce;
  return make_plan(options, 4, engine::Target{.mesh = {.sizes = {2, 1, 1, 1}}, .rank = rank});
}

std::string recipe_of_blocks(int blocks) {
  return fmt::format(
      "recipe: 1\nmodel: {{architecture: llama, vocab_size: 31, hidden_size: 64, "
      "intermediate_size: 128, num_attention_heads: 2, num_hidden_layers: {}, "
      "max_position_embeddings: 16}}\n"
      "training: {{seq_len: 8, micro_batch_size: 1, global_batch_size: 2, max_steps: 10}}\n",
      blocks);
}

}  // namespace

TEST_CASE("gradients travel while the last micro-batch's backward goes on, and not before it") {
  for (const int zero : {0, 1}) {
    CAPTURE(zero);
    const PassPlan step = plan_of_two(zero).step;
    const Collective sum = zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    const auto is_launch = [&](const PassEvent& event, std::string_view name) {
      return event.kind == PassEvent::Kind::launch && step.launches[event.index].name == name;
    };
    int losses = 0, look_ups = 0, sums_before_the_end = 0;
    double sent_before_the_end = 0, sent_at_the_end = 0;
    for (const PassEvent& event : step.events) {
      losses += is_launch(event, "cross_entropy");
      look_ups += is_launch(event, "embedding_backward");
      if (event.kind != PassEvent::Kind::start || step.collectives[event.index].kind != sum)
        continue;
      CHECK(losses == 2);  // the last micro-batch is behind its forward
      const bool before = look_ups < 2;
      sums_before_the_end += before;
      (before ? sent_before_the_end : sent_at_the_end) +=
          step.collectives[event.index].mean_sent_bytes_of_call();
    }
    CHECK(look_ups == 2);
    // All but those of the embedding, and of the loss and the norm.
    CHECK(sent_before_the_end > 8 * sent_at_the_end);
    // Head, last norm and two blocks, whose gradients are small, are a message each.
    CHECK(sums_before_the_end == 4);
  }
}

TEST_CASE("small tensors of a few blocks are under way at a time") {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml", .text = recipe_of_blocks(40)});
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    engine::EngineOptions options = recipe.options(7);
    options.zero = zero;
    const engine::Target target{.mesh = {.sizes = {2, 1, 1, 1}}};
    const PassPlan step = make_plan(options, 2, target).step;
    std::vector<const CollectiveGroup*> calls;
    std::map<Collective, int> under_way, most, all;
    for (const PassEvent& event : step.events) {
      if (event.kind == PassEvent::Kind::start) {
        const CollectiveGroup& call = *calls.emplace_back(&step.collectives[event.index]);
        ++all[call.kind];
        most[call.kind] = std::max(most[call.kind], ++under_way[call.kind]);
      } else if (event.kind == PassEvent::Kind::wait) {
        --under_way[calls[event.index]->kind];
      }
    }
    // Of gradients, and the loss and the norm.
    const Collective sum = zero == 0 ? Collective::all_reduce : Collective::reduce_scatter;
    CHECK(all[sum] >= 40);
    CHECK(all[sum] <= 40 + 6);
    CHECK(most[sum] <= (zero < 2 ? 4 + 3 : 2));  // embedding, final norm and head by themselves
    if (zero == 0) continue;
    CHECK(all[Collective::all_gather] <= (zero < 3 ? 1 : 2) * 40 + 6);
    CHECK(most[Collective::all_gather] <= 4 + 3);
  }
}

TEST_CASE("copies of small gradients that travel together are those of a few blocks") {
  const auto peak_of = [](int blocks, int ranks) {
    test::EngineRecipe recipe;
    recipe::load(recipe, {.file = "test.yaml", .text = recipe_of_blocks(blocks)});
    const engine::Target target{.mesh = {.sizes = {ranks, 1, 1, 1}}};
    return make_plan(recipe.options(7), 2, target).step.peak.total_bytes;
  };
  const auto more_of = [&](int blocks) { return peak_of(blocks, 2) - peak_of(blocks, 1); };
  CHECK(more_of(40) <= more_of(8));
}

TEST_CASE(
    "with ZeRO 3 parameters travel forth and back, those with which the way back begins once") {
  const Plan plan = plan_of_two(3);
  const auto sent_by = [](const Plan& of) {
    double sent = 0, mean = 0;
    for (const CollectiveGroup& group : of.step.collectives) {
      if (group.kind != Collective::all_gather) continue;
      sent += group.sent_bytes();
      mean += static_cast<double>(group.count) * group.mean_sent_bytes_of_call();
    }
    return std::pair(sent, mean);
  };
  const auto [first, mean] = sent_by(plan);
  const auto [second, same_mean] = sent_by(plan_of_two(3, std::nullopt, 1));
  // Of two blocks the first is gathered again; embedding and head have no use for it. Both ranks
  // together send every parameter, in each of two micro-batches, and slices are uneven.
  const auto elements = static_cast<double>(plan.parameters + plan.parameters_per_block);
  CHECK(first + second == 2 * 4 * elements);
  CHECK(first != second);
  CHECK(mean == 4 * elements);
  CHECK(same_mean == mean);
}

TEST_CASE("gradients that travel in bf16 take half of the bytes") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    const auto sent = [&](std::optional<DType> type) {
      double bytes = 0;
      for (const CollectiveGroup& group : plan_of_two(zero, type).step.collectives) {
        const bool of_gradients = zero == 0
                                      ? group.kind == Collective::all_reduce && group.bytes > 64
                                      : group.kind == Collective::reduce_scatter;
        if (of_gradients) bytes += group.sent_bytes();
      }
      return bytes;
    };
    CHECK(sent({}) > 0);
    CHECK(sent(DType::bf16) == sent({}) / 2);
    CHECK(sent(DType::f32) == sent({}));
  }
}

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

TEST_CASE("a checkpoint is that of all experts, whichever of them a rank has") {
  test::EngineRecipe recipe;
  recipe::load(recipe,
               {.file = "test.yaml",
                .text = "recipe: 1\n"
                        "model: {architecture: mixtral, vocab_size: 64, hidden_size: 16, "
                        "intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2, "
                        "num_local_experts: 4, max_position_embeddings: 16}\n"
                        "training: {seq_len: 8, micro_batch_size: 1, global_batch_size: 4, "
                        "max_steps: 10}\n"});
  const auto plan_of = [&](const MeshShape& mesh) {
    return make_plan(recipe.options(7), 4, engine::Target{.mesh = mesh});
  };
  const Plan one = plan_of({}), four = plan_of({.sizes = {4, 1, 1, 1}, .ep = 4});
  CHECK(four.checkpoint_bytes == one.checkpoint_bytes);
  CHECK(four.model_flops_per_token == one.model_flops_per_token);
  CHECK(four.parameters == one.parameters);
}

}  // namespace llmtrain::plan
