// What is computed again for a budget: enough, and no more than it takes.
#include "lib/plan/recompute_budget.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/engine_recipe.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::plan {

namespace {

using recipe::SizeOrShare;

struct Shape {
  std::string_view model = "architecture: llama, intermediate_size: 176";
  int blocks = 4;
  int micro_batches = 1;
  MeshShape mesh = {};
  int vocabulary = 100;
};

class Job {
 public:
  explicit Job(const Shape& shape) {
    const std::string text = fmt::format(
        "recipe: 1\nmodel: {{{}, vocab_size: {}, hidden_size: 64, num_attention_heads: 4, "
        "num_hidden_layers: {}, max_position_embeddings: 64}}\n"
        "training: {{seq_len: 64, micro_batch_size: 2, global_batch_size: {}, max_steps: 1}}\n",
        shape.model, shape.vocabulary, shape.blocks, 2 * shape.micro_batches);
    recipe::load(recipe_, {.file = "test.yaml", .text = text});
    options_ = recipe_.options(7);
    samples_ = 2 * shape.micro_batches;
    target_.mesh = shape.mesh;
  }
  BudgetedRecompute within(const SizeOrShare& budget) const {
    return recompute_within(options_, samples_, target_, budget);
  }
  Plan plan(const engine::RecomputePolicy& policy, int rank = 0) const {
    engine::EngineOptions options = options_;
    options.recompute = policy;
    engine::Target target = target_;
    target.rank = rank;
    return make_plan(options, samples_, target);
  }

 private:
  test::EngineRecipe recipe_;
  engine::EngineOptions options_;
  std::int64_t samples_ = 0;
  engine::Target target_;
};

std::uint64_t activations(const Plan& plan) {
  return plan.step.peak.per_category[static_cast<std::size_t>(Category::activations)];
}

double work(const Plan& plan) {
  double sum = 0;
  for (const LaunchGroup& launch : plan.step.launches) {
    sum += static_cast<double>(launch.count) *
           (launch.cost.flops + flops_per_byte(DeviceKind::cpu) * launch.cost.bytes());
  }
  return sum;
}

// Every choice for every block.
std::vector<engine::RecomputePolicy> all_policies(int blocks) {
  const std::array<engine::BlockRecompute, 5> kinds{engine::BlockRecompute{},
                                                    {.whole = false, .ops = {"activation"}},
                                                    {.whole = false, .ops = {"norm"}},
                                                    {.whole = false, .ops = {"activation", "norm"}},
                                                    {.whole = true, .ops = {}}};
  std::vector<engine::RecomputePolicy> policies(1);
  for (int b = 0; b < blocks; ++b) {
    std::vector<engine::RecomputePolicy> longer;
    for (const engine::RecomputePolicy& policy : policies) {
      for (const engine::BlockRecompute& kind : kinds) {
        longer.push_back(policy);
        longer.back().blocks.push_back(kind);
      }
    }
    policies = std::move(longer);
  }
  return policies;
}

}  // namespace

TEST_CASE("of all choices for all blocks a budget takes one of the least work") {
  for (const char* model : {"architecture: llama, intermediate_size: 176", "architecture: gpt2"}) {
    CAPTURE(model);
    const Job job({.model = model, .blocks = 4});
    struct Candidate {
      std::uint64_t bytes;
      double work;
    };
    std::vector<Candidate> candidates;
    for (const engine::RecomputePolicy& policy : all_policies(4)) {
      const Plan plan = job.plan(policy);
      candidates.push_back({activations(plan), work(plan)});
    }
    const Candidate nothing = candidates.front();
    for (int percent = 100; percent >= 40; percent -= 2) {
      CAPTURE(percent);
      const BudgetedRecompute found = job.within(SizeOrShare::of_all(percent / 100.0));
      CHECK(found.whole_bytes == nothing.bytes);
      double least = std::numeric_limits<double>::infinity();
      for (const Candidate& candidate : candidates) {
        if (candidate.bytes <= found.budget_bytes) least = std::min(least, candidate.work);
      }
      CHECK(found.fits() == (least < std::numeric_limits<double>::infinity()));
      const Plan plan = job.plan(found.policy);
      CHECK(activations(plan) == found.bytes);
      CHECK(found.added_work == test::relative(work(plan) / nothing.work - 1, 1e-9));
      // What a choice saves and adds is not quite the sum over blocks.
      if (found.fits()) CHECK(work(plan) == test::relative(least, 1e-4));
    }
  }
}

TEST_CASE("a budget is bytes, or a share; one that nothing keeps to leaves all blocks whole") {
  const Job job({});
  const BudgetedRecompute all = job.within(SizeOrShare::of_all(1));
  CHECK(all.fits());
  CHECK(to_string(all.policy) == "nothing");
  CHECK(all.added_work == 0);
  const BudgetedRecompute exact = job.within(SizeOrShare::size(all.whole_bytes));
  CHECK(to_string(exact.policy) == "nothing");
  const BudgetedRecompute less = job.within(SizeOrShare::size(all.whole_bytes - 1));
  CHECK(less.bytes < all.whole_bytes);
  CHECK(less.added_work > 0);
  const BudgetedRecompute none = job.within(SizeOrShare::size(1000));
  CHECK_FALSE(none.fits());
  CHECK(to_string(none.policy) == "blocks 0 to 3 whole");
}

TEST_CASE("each rank of a pipeline keeps to the budget, and ranks beside it do as it does") {
  Shape shape{.blocks = 8, .micro_batches = 8, .mesh = {.sizes = {1, 1, 4, 1}}};
  const Job job(shape);
  const BudgetedRecompute found = job.within(SizeOrShare::of_all(0.6));
  REQUIRE(found.fits());
  std::uint64_t most = 0;
  for (int rank = 0; rank < 4; ++rank) {
    most = std::max(most, activations(job.plan(found.policy, rank)));
  }
  CHECK(most == found.bytes);
  // The first stage holds the most micro-batches, the last one a single one.
  CHECK(found.policy.block(0) != engine::BlockRecompute{});
  CHECK(found.policy.block(7) == engine::BlockRecompute{});
  shape.mesh.sizes = {1, 2, 4, 1};
  const Job with_tp(shape);
  CHECK(with_tp.within(SizeOrShare::of_all(0.6)).fits());
}

TEST_CASE("of ranks that share layers the one with the most rows of the vocabulary keeps to it") {
  for (const bool pipeline : {false, true}) {
    // Parts of 64, 64, 64 and 108 rows.
    const Job job({.blocks = 4,
                   .micro_batches = 2,
                   .mesh = {.sizes = {1, 4, pipeline ? 2 : 1, 1}},
                   .vocabulary = 300});
    const int ranks = pipeline ? 8 : 4;
    const auto most_of = [&](const engine::RecomputePolicy& policy) {
      std::uint64_t most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        most = std::max(most, activations(job.plan(policy, rank)));
      }
      return most;
    };
    const std::uint64_t whole = most_of({});
    CHECK(job.within(SizeOrShare::of_all(1)).whole_bytes == whole);
    for (const double share : {0.9, 0.7, 0.5}) {
      const BudgetedRecompute found = job.within(SizeOrShare::of_all(share));
      REQUIRE(found.fits());
      CHECK(most_of(found.policy) == found.bytes);
      CHECK(static_cast<double>(found.bytes) <= share * static_cast<double>(whole));
    }
  }
}

TEST_CASE("a policy is told by its ranges of blocks") {
  engine::RecomputePolicy policy;
  CHECK(to_string(policy) == "nothing");
  policy = engine::RecomputePolicy::whole_blocks(5, 2);
  CHECK(to_string(policy) == "blocks 0, 2, 4 whole");
  policy.blocks[1].ops = {"norm"};
  policy.blocks[3].ops = {"norm", "activation"};
  CHECK(to_string(policy) == "blocks 0, 2, 4 whole; activation in block 3; norm in blocks 1, 3");
}

}  // namespace llmtrain::plan
