// Bytes that a rank sends in a planned step, by kind of collective, against the volumes that papers
// give for each way to share the work. (That a run sends what its plan says: tests/mesh.)
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/plan/plan.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::plan {

namespace {

// FP32; columns of the residual stream, of all queries, and of all keys.
constexpr int kBlocks = 3, kMicroBatches = 4;
constexpr double kTokens = 16, kHidden = 24, kQ = 32, kK = 32, kBytes = 4;
constexpr double kPasses = kBlocks * kMicroBatches;
constexpr double kActivations = kTokens * kHidden * kBytes;  // of a micro-batch
// What is smaller are losses, norms and what a loss knows of a row.
constexpr std::uint64_t kLarge = 1024;

std::string_view model(bool experts) {
  return experts ? "architecture: qwen3_moe, num_experts: 8, num_experts_per_tok: 2, "
                   "moe_intermediate_size: 20"
                 : "architecture: llama";
}

Plan plan_of(const MeshShape& mesh, bool experts = false, int zero = 0, int rank = 0) {
  test::EngineRecipe recipe;
  const std::string text = fmt::format(
      "recipe: 1\nmodel: {{{}, vocab_size: 64, hidden_size: 24, intermediate_size: 40, "
      "head_dim: 8, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 4, "
      "max_position_embeddings: 16}}\n"
      "training: {{seq_len: 16, micro_batch_size: 1, global_batch_size: {}, max_steps: 10}}\n"
      "precision: {{compute: fp32}}\n",
      model(experts), kMicroBatches * mesh[Axis::dp]);
  recipe::load(recipe, {.file = "test.yaml", .text = text});
  engine::EngineOptions options = recipe.options(7);
  options.zero = zero;
  return make_plan(options, kMicroBatches * mesh[Axis::dp],
                   engine::Target{.mesh = mesh, .rank = rank});
}

// All calls of a kind over a group, of no fewer bytes each.
double sent(const Plan& plan, Collective kind, std::string_view group, std::uint64_t at_least = 0) {
  double bytes = 0;
  for (const CollectiveGroup& calls : plan.step.collectives) {
    const bool counts = calls.kind == kind && calls.group == group && calls.bytes >= at_least;
    if (counts) bytes += calls.sent_bytes();
  }
  return bytes;
}

}  // namespace

// arXiv 1909.08053: two all-reduces in a block's forward and two in its backward; a vocabulary in
// parts adds one behind the embedding and one behind the head's backward.
TEST_CASE("ranks of tp send the volume of Megatron-LM") {
  const Plan plan = plan_of({.sizes = {1, 2, 1, 1}});
  CHECK(sent(plan, Collective::all_reduce, "tp", kLarge) ==
        (4 * kBlocks + 2) * kMicroBatches * 2 * (1.0 / 2) * kActivations);
}

// arXiv 2205.05198: an all-reduce becomes an all-gather and a reduce-scatter; what a product needs
// for its weights is gathered again.
TEST_CASE("ranks of tp that share rows send as much, and what products keep no more") {
  const Plan plan = plan_of({.sizes = {1, 2, 1, 1}, .tp_sequence_parallel = true});
  const double once = kMicroBatches * (1.0 / 2) * kActivations;
  CHECK(sent(plan, Collective::reduce_scatter, "tp", kLarge) == (4 * kBlocks + 2) * once);
  CHECK(sent(plan, Collective::all_gather, "tp", kLarge) == (6 * kBlocks + 2) * once);
}

TEST_CASE("stages send activations on and their gradients back") {
  for (const int rank : {0, 1, 2}) {
    const double neighbours = rank == 1 ? 2 : 1;
    CHECK(sent(plan_of({.sizes = {1, 1, 3, 1}}, false, 0, rank), Collective::send, "pp") ==
          neighbours * kMicroBatches * kActivations);
  }
}

// Keys and values are gathered twice, their gradients summed once.
TEST_CASE("ranks of sp gather keys and values") {
  const Plan plan = plan_of({.sizes = {1, 1, 1, 4}});
  const double once = kPasses * (3.0 / 4) * kTokens * 2 * kK * kBytes;
  CHECK(sent(plan, Collective::all_gather, "sp") == 2 * once);
  CHECK(sent(plan, Collective::reduce_scatter, "sp") == once);
}

// arXiv 2309.14509: q, k, v and the output of attention, and their gradients.
TEST_CASE("ranks of sp that share heads send the volume of Ulysses") {
  const Plan plan = plan_of({.sizes = {1, 1, 1, 4}, .sp_algo = SequenceSharing::ulysses});
  CHECK(sent(plan, Collective::all_to_all, "sp") ==
        2 * kPasses * (3.0 / 4) * (kTokens / 4) * (kQ + 2 * kK + kQ) * kBytes);
}

// arXiv 2310.01889: keys and values go around forth and back, with their gradients behind them.
TEST_CASE("ranks of sp in a ring send keys and values to all others") {
  const Plan plan = plan_of({.sizes = {1, 1, 1, 4}, .sp_algo = SequenceSharing::ring});
  CHECK(sent(plan, Collective::send, "sp") ==
        3 * kPasses * (4 - 1) * (kTokens / 4) * 2 * kK * kBytes);
}

// Each choice's row goes there and back, and so do gradients; its weight goes there, and its
// gradient back.
TEST_CASE("ranks that share experts send a row for each choice") {
  const Plan plan = plan_of({.sizes = {4, 1, 1, 1}, .ep = 4}, true);
  constexpr double kChoices = kTokens * 2;
  CHECK(sent(plan, Collective::all_to_all, "experts") ==
        kPasses * (3.0 / 4) * kChoices * (4 * kHidden + 2) * kBytes);
}

// arXiv 1910.02054: gradients are all-reduced, or reduced and their parameters gathered; each of M
// micro-batches reduces where gradients are divided, and gathers where parameters are, twice but
// for the embedding, the last block and the head.
TEST_CASE("data ranks send the volumes of ZeRO") {
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    std::vector<Plan> plans;
    for (int rank = 0; rank < 4; ++rank) {
      plans.push_back(plan_of({.sizes = {4, 1, 1, 1}}, false, zero, rank));
    }
    // Slices are whole blocks of a norm's sums: of so small a model ranks own more and less.
    const auto mean_sent = [&](Collective kind) {
      double bytes = 0;
      for (const Plan& of_rank : plans) bytes += sent(of_rank, kind, "dp*sp") / 4;
      return bytes;
    };
    const Plan& plan = plans.front();
    const double once = (3.0 / 4) * kBytes * static_cast<double>(plan.parameters);
    const double again = (3.0 / 4) * kBytes * (kBlocks - 1) *
                         static_cast<double>(plan.parameters_per_block) * kMicroBatches;
    // A step's loss, and its norm.
    const double reduced =
        mean_sent(Collective::all_reduce) - 2 * (3.0 / 4) * (zero == 0 ? 8 : 8 + 256);
    CHECK(reduced == (zero == 0 ? 2 * once : 0));
    CHECK(mean_sent(Collective::reduce_scatter) == (zero == 0   ? 0
                                                    : zero == 1 ? once
                                                                : kMicroBatches * once));
    CHECK(mean_sent(Collective::all_gather) == (zero == 0  ? 0
                                                : zero < 3 ? once
                                                           : kMicroBatches * once + again));
  }
}

}  // namespace llmtrain::plan
