// Plans of ranks that share their work in several ways at once, against the sums of what papers
// give for each way (tests/support/textbook): every kind of collective over every group of ranks.
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/engine_recipe.hpp"
#include "tests/support/textbook/planned.hpp"

namespace llmtrain::plan {

namespace {

/// A decoder in FP32 with RMS norms, gated MLPs or experts, and no biases, and the ranks that train
/// it. Every number divides by the ranks that share it, but for the vocabulary and key/value heads.
struct TextbookLayout {
  MeshShape mesh;
  int zero = 0;
  std::string schedule = "1f1b";
  int stages_per_rank = 1;
  bool recomputes_blocks = false;
  int micro_batches = 4;  // of a data rank
  int blocks = 4;
  int kv_heads = 8;
  bool tied = false;
  int experts = 0;

  static constexpr int kSequences = 2;  // of a micro-batch
  static constexpr int kLength = 64;
  static constexpr int kHidden = 48, kIntermediate = 80, kExpertIntermediate = 16;
  static constexpr int kHeads = 8, kHeadDim = 8;
  static constexpr int kVocabulary = 65;
  static constexpr int kExpertsPerToken = 2;
};

// Sizes of a mesh, in their order.
constexpr std::array<int, kNumAxes> sizes(int dp, int tp, int pp, int sp) {
  return {dp, tp, pp, sp};
}

std::string recipe_text(const TextbookLayout& layout) {
  using L = TextbookLayout;
  std::string family = "architecture: llama";
  if (layout.experts > 0) {
    family = fmt::format(
        "architecture: qwen3_moe, num_experts: {}, num_experts_per_tok: {}, "
        "moe_intermediate_size: {}",
        layout.experts, L::kExpertsPerToken, L::kExpertIntermediate);
  }
  return fmt::format(
      "recipe: 1\nmodel: {{{}, vocab_size: {}, hidden_size: {}, intermediate_size: {}, "
      "head_dim: {}, num_hidden_layers: {}, num_attention_heads: {}, num_key_value_heads: {}, "
      "max_position_embeddings: {}, tie_word_embeddings: {}}}\n"
      "training: {{seq_len: {}, micro_batch_size: {}, global_batch_size: {}, max_steps: 10}}\n"
      "precision: {{compute: fp32}}\nactivation_checkpoint: {{mode: {}}}\n",
      family, L::kVocabulary, L::kHidden, L::kIntermediate, L::kHeadDim, layout.blocks, L::kHeads,
      layout.kv_heads, L::kLength, layout.tied, L::kLength, L::kSequences,
      L::kSequences * layout.micro_batches * layout.mesh[Axis::dp],
      layout.recomputes_blocks ? "full" : "none");
}

engine::EngineOptions options_of(const test::EngineRecipe& recipe, const TextbookLayout& layout) {
  engine::EngineOptions options = recipe.options(7);
  options.zero = layout.zero;
  options.pipeline.schedule = layout.schedule;
  options.pipeline.stages_per_rank = layout.stages_per_rank;
  return options;
}

void check(const TextbookLayout& layout) {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml", .text = recipe_text(layout)});
  const test::TextbookRun run{options_of(recipe, layout), layout.mesh, layout.micro_batches};
  CHECK(test::differences(run, test::planned_volumes(run, {})) == "");
}

}  // namespace

TEST_CASE("ranks that share samples and layers send what both ways take") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    check({.mesh = {.sizes = sizes(2, 2, 1, 1)}, .zero = zero, .kv_heads = 1});
    check({.mesh = {.sizes = sizes(2, 4, 1, 1), .tp_sequence_parallel = true},
           .zero = zero,
           .kv_heads = 1 + zero % 2,
           .tied = true});
  }
  check({.mesh = {.sizes = sizes(2, 2, 1, 1)}, .recomputes_blocks = true});
  check({.mesh = {.sizes = sizes(2, 2, 1, 1), .tp_sequence_parallel = true},
         .zero = 3,
         .recomputes_blocks = true});
  check({.mesh = {.sizes = sizes(4, 2, 1, 1), .dp_replicate = 2}, .zero = 1});
  check({.mesh = {.sizes = sizes(4, 2, 1, 1), .dp_replicate = 2}, .zero = 2, .kv_heads = 1});
  check({.mesh = {.sizes = sizes(4, 2, 1, 1), .tp_sequence_parallel = true, .dp_replicate = 2},
         .zero = 3,
         .tied = true});
}

// Blocks do not divide by stages, and middle ranks send both ways.
TEST_CASE("stages of a pipeline send what is between them, whatever is shared beside") {
  constexpr std::pair<std::string_view, int> kSchedules[] = {
      {"gpipe", 1}, {"1f1b", 1}, {"eager_1f1b", 1}, {"interleaved_1f1b", 2},
      {"zb_h1", 1}, {"zbv", 2},  {"v_half", 2},     {"dualpipev", 2}};
  for (const auto& [schedule, stages] : kSchedules) {
    CAPTURE(schedule);
    for (const int zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      TextbookLayout layout{.zero = zero,
                            .schedule = std::string(schedule),
                            .stages_per_rank = stages,
                            .micro_batches = 6,
                            .blocks = 7,
                            .tied = zero % 2 == 1};
      layout.mesh.sizes = sizes(2, 1, 3, 1);
      check(layout);
      layout.mesh = {.sizes = sizes(2, 2, 2, 1), .tp_sequence_parallel = zero > 1};
      layout.kv_heads = 1;
      check(layout);
    }
    TextbookLayout layout{
        .schedule = std::string(schedule), .stages_per_rank = stages, .recomputes_blocks = true};
    layout.mesh.sizes = sizes(1, 2, 2, 1);
    check(layout);
    layout.mesh = {.sizes = sizes(1, 2, 2, 2), .sp_algo = SequenceSharing::ring};
    check(layout);
  }
}

TEST_CASE("ranks that share sequences send what that takes, whatever is shared beside") {
  using enum SequenceSharing;
  for (const SequenceSharing how : {all_gather, ulysses, ring}) {
    CAPTURE(static_cast<int>(how));
    for (const int zero : {0, 1, 2, 3}) {
      CAPTURE(zero);
      check({.mesh = {.sizes = sizes(2, 1, 1, 4), .sp_algo = how}, .zero = zero, .kv_heads = 2});
      check({.mesh = {.sizes = sizes(1, 2, 2, 2), .tp_sequence_parallel = true, .sp_algo = how},
             .zero = zero,
             .kv_heads = 1});
    }
    check({.mesh = {.sizes = sizes(1, 2, 1, 4), .sp_algo = how}, .kv_heads = 2});
    check({.mesh = {.sizes = sizes(2, 2, 1, 2), .sp_algo = how},
           .zero = 1,
           .recomputes_blocks = true});
    check({.mesh = {.sizes = sizes(1, 1, 3, 2), .sp_algo = how}, .blocks = 5});
    check({.mesh = {.sizes = sizes(4, 1, 1, 2), .dp_replicate = 2, .sp_algo = how}, .zero = 3});
    if (how == ulysses) continue;
    check({.mesh = {.sizes = sizes(1, 2, 1, 4), .sp_algo = how, .sp_ulysses = 2}, .kv_heads = 2});
    check({.mesh = {.sizes = sizes(2, 1, 1, 8), .sp_algo = how, .sp_ulysses = 4},
           .zero = 3,
           .recomputes_blocks = true,
           .kv_heads = 2});
  }
}

TEST_CASE("ranks that share experts send rows to them, whatever is shared beside") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    check({.mesh = {.sizes = sizes(4, 1, 1, 1), .ep = 2}, .zero = zero, .experts = 8});
    check({.mesh = {.sizes = sizes(2, 2, 1, 1), .ep = 2}, .zero = zero, .experts = 8});
    check({.mesh = {.sizes = sizes(2, 2, 2, 1), .tp_sequence_parallel = true, .ep = 2},
           .zero = zero,
           .experts = 8});
    check({.mesh = {.sizes = sizes(2, 1, 1, 2), .ep = 4}, .zero = zero, .experts = 8});
  }
  check({.mesh = {.sizes = sizes(4, 1, 2, 1), .dp_replicate = 2, .ep = 2},
         .zero = 3,
         .recomputes_blocks = true,
         .experts = 8});
  check({.mesh = {.sizes = sizes(1, 1, 1, 4), .ep = 2}, .zero = 2, .experts = 8});
  check({.mesh = {.sizes = sizes(4, 2, 1, 1)}, .zero = 2, .experts = 8});
  check({.mesh = {.sizes = sizes(2, 2, 1, 2), .tp_sequence_parallel = true, .ep = 2},
         .zero = 1,
         .recomputes_blocks = true,
         .kv_heads = 2,
         .experts = 8});
  check(
      {.mesh = {.sizes = sizes(8, 1, 1, 1), .dp_replicate = 2, .ep = 2}, .zero = 2, .experts = 8});
}

TEST_CASE("ranks that share their work in every way send what all of these take") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    check({.mesh = {.sizes = sizes(2, 1, 2, 2)}, .zero = zero, .kv_heads = 2});
    check({.mesh = {.sizes = sizes(2, 2, 2, 2), .tp_sequence_parallel = true, .ep = 2},
           .zero = zero,
           .recomputes_blocks = zero == 3,
           .kv_heads = 2,
           .experts = 8});
  }
  check({.mesh = {.sizes = sizes(4, 2, 2, 1), .dp_replicate = 2},
         .zero = 3,
         .schedule = "zbv",
         .stages_per_rank = 2,
         .tied = true});
}

}  // namespace llmtrain::plan
