// What a plan says of all ranks, beside the plan of each.
#include "lib/plan/roles.hpp"

#include <algorithm>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/checkpoint/snapshot.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::string_view kExperts =
    "architecture: qwen3_moe, vocab_size: 259, hidden_size: 24, intermediate_size: 40, "
    "head_dim: 6, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_experts: 8, num_experts_per_tok: 3, moe_intermediate_size: 20, mlp_only_layers: [1]";
// Of four ranks two own alike of all but the experts, which differ by runs of 8-bit states.
constexpr std::string_view kUnevenExperts =
    "architecture: qwen3_moe, vocab_size: 288, hidden_size: 32, intermediate_size: 40, "
    "head_dim: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4, "
    "num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 12";
constexpr std::string_view kDense =
    "architecture: llama, vocab_size: 259, hidden_size: 24, intermediate_size: 40, head_dim: 6, "
    "num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2";

/// Of files of a snapshot: one for all, and some.
constexpr std::uint64_t kOneFile = std::uint64_t{4} << 30, kFiles = 10'000;

struct Layout {
  std::string_view model;
  std::string_view optimizer;
  int zero = 0;
  std::uint64_t snapshot_shard_bytes = 0;
  MeshShape mesh;
};

class Job {
 public:
  explicit Job(const Layout& layout) {
    const std::string text = fmt::format(
        "recipe: 1\nmodel: {{{}, max_position_embeddings: 16}}\n"
        "training: {{seq_len: 16, micro_batch_size: 1, global_batch_size: 16, max_steps: 10}}\n"
        "optimizer: {{name: {}}}\n",
        layout.model, layout.optimizer);
    recipe::load(recipe_, {.file = "test.yaml", .text = text});
    options_ = recipe_.options(7);
    options_.zero = layout.zero;
    target_.mesh = layout.mesh;
    target_.snapshot_shard_bytes = layout.snapshot_shard_bytes;
  }
  std::vector<Plan> plans_of_all() {
    std::vector<Plan> plans;
    for (target_.rank = 0; target_.rank < target_.mesh.world_size(); ++target_.rank) {
      plans.push_back(make_plan(options_, 16, target_));
    }
    target_.rank = 0;
    return plans;
  }
  std::vector<RankRole> roles() const { return rank_roles(options_, target_); }
  RoleSurvey survey(Plan& fullest, std::size_t most = kMostRoles) const {
    return survey_roles(options_, 16, target_, fullest, most);
  }

 private:
  test::EngineRecipe recipe_;
  engine::EngineOptions options_;
  engine::Target target_;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> kLayouts{
      {kDense, "adamw", 0, 0, {.sizes = {2, 2, 1, 1}}},
      {kDense, "adamw", 0, kFiles, {.sizes = {4, 2, 1, 1}}},
      {kDense, "adamw", 1, kFiles, {.sizes = {8, 1, 1, 1}}},
      {kDense, "muon", 1, kFiles, {.sizes = {4, 1, 2, 1}}},
      {kDense, "muon", 2, 0, {.sizes = {4, 2, 1, 1}}},
      {kDense, "adam_mini", 1, kFiles, {.sizes = {3, 2, 1, 1}}},
      {kDense, "adafactor", 1, kFiles, {.sizes = {3, 2, 1, 1}}},
      {kDense, "adamw_8bit", 1, kFiles, {.sizes = {3, 1, 2, 1}}},
      {kDense, "lion_8bit", 2, 0, {.sizes = {4, 1, 1, 1}}},
      {kExperts, "came", 1, kFiles, {.sizes = {4, 1, 1, 2}, .ep = 2}},
      {kUnevenExperts,
       "adamw_8bit, min_8bit_size: 256",
       1,
       false,
       {.sizes = {4, 1, 1, 1}, .ep = 2}},
      {kDense, "galore", 1, kFiles, {.sizes = {3, 2, 1, 1}}},
      {kExperts, "galore", 2, 0, {.sizes = {4, 2, 1, 1}, .ep = 2}},
      {kDense, "ldadamw", 2, 0, {.sizes = {3, 2, 1, 1}}},
      {kDense,
       "q_galore, min_8bit_size: 0, proj_group_size: 7",
       1,
       kFiles,
       {.sizes = {3, 1, 2, 1}}},
      {kExperts, "q_galore", 2, 0, {.sizes = {4, 2, 1, 1}, .ep = 2}},
      {kExperts, "ldadamw", 1, kFiles, {.sizes = {4, 2, 1, 1}, .ep = 2}},
      {kDense, "muon", 3, 0, {.sizes = {2, 1, 1, 2}, .sp_algo = SequenceSharing::ring}},
      {kDense, "adamw", 3, kFiles, {.sizes = {4, 1, 2, 2}, .dp_replicate = 2}},
      {kExperts, "muon", 1, kFiles, {.sizes = {4, 1, 1, 2}, .ep = 2}},
      {kExperts, "adamw", 2, kFiles, {.sizes = {4, 2, 1, 1}, .dp_replicate = 2, .ep = 2}},
      {kExperts,
       "muon",
       3,
       false,
       {.sizes = {4, 1, 1, 2}, .order = {Axis::dp, Axis::sp, Axis::tp, Axis::pp}, .ep = 4}}};
  return kLayouts;
}

}  // namespace

TEST_CASE("a survey's fullest and emptiest ranks are those of all ranks' own plans") {
  for (std::size_t i = 0; i < layouts().size(); ++i) {
    CAPTURE(i);
    Job job(layouts()[i]);
    const std::vector<Plan> plans = job.plans_of_all();
    const auto extent = [](const Plan& plan) { return plan.extent_bytes(); };
    Plan fullest;
    const RoleSurvey survey = job.survey(fullest);
    const auto [least, most] = std::ranges::minmax(plans, {}, extent);
    CHECK(survey.fullest().extent_bytes == extent(most));
    CHECK(survey.emptiest().extent_bytes == extent(least));
    CHECK(fullest.rank == survey.fullest().rank);
    CHECK(fullest.extent_bytes() == extent(most));
    CHECK(fullest.checkpoint_bytes == plans[0].checkpoint_bytes);
    CHECK(fullest.model_flops_per_token == plans[0].model_flops_per_token);

    // Roles are as many ranks each as have their memory.
    CHECK(survey.num_roles == survey.roles.size());
    std::map<std::uint64_t, int> ranks_with, planned_with;
    for (const Plan& plan : plans) ++ranks_with[extent(plan)];
    for (const RoleMemory& role : survey.roles) {
      planned_with[role.extent_bytes] += role.count;
      CHECK(role.extent_bytes == plans[static_cast<std::size_t>(role.rank)].extent_bytes());
      CHECK(role.peak_bytes == plans[static_cast<std::size_t>(role.rank)].peak_bytes());
    }
    CHECK(planned_with == ranks_with);
  }
}

TEST_CASE("of a save each element has one writer, and ranks that may choose write alike") {
  const auto written = [](const Plan& plan) {
    const auto snapshot = static_cast<double>(
        plan.step.peak.per_category[static_cast<std::size_t>(Category::snapshot)]);
    return snapshot - static_cast<double>(checkpoint::snapshot_bytes(1, kOneFile) - 1);
  };
  const auto bytes_of = [&](const MeshShape& mesh, int zero) {
    std::vector<double> bytes;
    for (const Plan& plan : Job({kDense, "adamw", zero, kOneFile, mesh}).plans_of_all()) {
      bytes.push_back(written(plan));
    }
    return bytes;
  };
  const double whole = bytes_of({.sizes = {1, 1, 1, 1}}, 0).front();
  REQUIRE(whole > 0);
  for (const int zero : {0, 1}) {
    for (const MeshShape& mesh :
         {MeshShape{.sizes = {3, 1, 1, 1}}, MeshShape{.sizes = {4, 2, 1, 1}}}) {
      const std::vector<double> bytes = bytes_of(mesh, zero);
      double sum = 0;
      for (const double of_rank : bytes) sum += of_rank;
      CAPTURE(zero);
      CAPTURE(bytes.size());
      CHECK(sum == doctest::Approx(whole).epsilon(0.02));
      CHECK(std::ranges::max(bytes) < 0.8 * whole);
      // Whoever holds a parameter may write it; of slices only their owners.
      const double mean = sum / static_cast<double>(bytes.size());
      if (zero == 0) CHECK(std::ranges::max(bytes) < 1.02 * mean);
    }
  }
}

TEST_CASE("of too many roles those are planned that own most and least, and unlike ones first") {
  std::vector<RankRole> roles;
  for (int i = 0; i < 10; ++i) {
    roles.push_back({.rank = i,
                     .count = 1,
                     .stage_rank = i % 2,
                     .own_bytes = static_cast<std::uint64_t>(100 - i),
                     .alike = static_cast<std::uint64_t>(i < 6 ? 0 : i)});
  }
  const auto ranks = [&](std::size_t most) {
    std::vector<int> found;
    for (const RankRole& role : roles_to_plan(roles, most)) found.push_back(role.rank);
    return found;
  };
  CHECK(ranks(1) == std::vector<int>{0, 8, 1, 9});
  CHECK(ranks(6) == std::vector<int>{0, 8, 6, 1, 9, 7});
  CHECK(ranks(8) == std::vector<int>{0, 8, 6, 2, 1, 9, 7, 3});
  CHECK(ranks(100).size() == 10);
}

// The rank that owns most need not be the fullest: what its matrices' updates take counts, too.
TEST_CASE("with two plans of eight roles a survey comes within a percent of the fullest rank") {
  Job job({kDense, "muon", 1, 0, {.sizes = {8, 1, 1, 1}}});
  Plan fullest, of_some;
  const RoleSurvey all = job.survey(fullest), some = job.survey(of_some, 2);
  CHECK(some.roles.size() == 2);
  CHECK(some.num_roles == all.num_roles);
  CHECK(some.num_roles == 8);
  const auto share = static_cast<double>(some.fullest().extent_bytes) /
                     static_cast<double>(all.fullest().extent_bytes);
  CHECK(share > 0.99);
  CHECK(share <= 1);
}

}  // namespace llmtrain::plan
