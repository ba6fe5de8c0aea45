// Correction biases of routers follow the counts of whole steps.
#include <cmath>
#include <cstring>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
#include "lib/engine/engine.hpp"
#include "tests/support/engine_recipe.hpp"

namespace llmtrain::engine {

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: dots1, vocab_size: 61, hidden_size: 24, intermediate_size: 40, head_dim: 10,
        num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2,
        max_position_embeddings: 16, n_routed_experts: 6, num_experts_per_tok: 2, n_group: 3,
        topk_group: 2, moe_intermediate_size: 12, bias_update_speed: 0.03125,
        initializer_range: 0.3}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}
optimizer: {lr: 1e-2}
)";
constexpr int kExperts = 6;

StepBatch make_batch(std::int64_t samples, std::uint64_t step) {
  StepBatch batch;
  batch.resize(samples, 13);
  const PhiloxKey key = philox_key(step, "test", "tokens");
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<std::int32_t>(philox_below(key, 0, i, 61));
    batch.targets[i] = (batch.tokens[i] * 7 + 3) % 61;
    batch.doc_begin[i] = 0;
    batch.positions[i] = static_cast<std::int32_t>(i % 13);
    ++batch.trained_tokens;
  }
  return batch;
}

struct Rig {
  explicit Rig(const std::vector<std::string>& overrides = {}) {
    recipe::load(recipe,
                 {.file = "test.yaml", .text = std::string(kRecipe), .overrides = overrides});
    engine.emplace(EnginePlace{.device = &device, .table = &kernels::cpu_table(), .threads = 2},
                   recipe.options(7));
    engine->initialize();
  }
  const Parameter& bias_of(int layer) {
    return engine->parameters().find(
        fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer));
  }
  std::vector<float> bias(int layer) {
    std::vector<float> values(kExperts);
    const auto bytes = engine->parameters().read(bias_of(layer));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  test::EngineRecipe recipe;
  Device device{make_cpu_memory(), std::uint64_t{1} << 28};
  std::optional<Engine> engine;
};

}  // namespace

TEST_CASE("a step moves each bias by the sign of what its expert lacks, over all micro-batches") {
  for (const char* dtype : {"fp32", "bf16"}) {
    Rig rig({std::string("precision.compute=") + dtype});
    std::vector<std::vector<float>> expected(2, std::vector<float>(kExperts, 0));
    for (int step = 1; step <= 6; ++step) {
      const StepOutcome outcome =
          rig.engine->train_step(make_batch(4, static_cast<std::uint64_t>(step)), step, 1.0);
      REQUIRE(outcome.routers.choices.size() == 2);
      for (std::size_t block = 0; block < 2; ++block) {
        const std::vector<double>& count = outcome.routers.choices[block];
        double sum = 0;
        for (const double c : count) sum += c;
        CHECK(sum == 4 * 13 * 2);
        for (std::size_t e = 0; e < kExperts; ++e) {
          const double lack = sum / kExperts - count[e];
          expected[block][e] += lack == 0 ? 0.0f : lack > 0 ? 0.03125f : -0.03125f;
        }
        CHECK(rig.bias(static_cast<int>(block) + 1) == expected[block]);
      }
    }
    CHECK(expected[0] != expected[1]);
  }
}

TEST_CASE("biases do not depend on how a step is cut into micro-batches, and stay at speed 0") {
  const auto after_steps = [](const std::vector<std::string>& overrides) {
    Rig rig(overrides);
    for (int step = 1; step <= 6; ++step) {
      rig.engine->train_step(make_batch(4, static_cast<std::uint64_t>(step)), step, 1.0);
    }
    return rig.bias(2);
  };
  const std::vector<float> two = after_steps({});
  CHECK(two != std::vector<float>(kExperts, 0));
  CHECK(after_steps({"training.micro_batch_size=1"}) == two);
  CHECK(after_steps({"training.micro_batch_size=4"}) == two);
  CHECK(after_steps({"model.bias_update_speed=0"}) == std::vector<float>(kExperts, 0));
}

TEST_CASE("a step that is not finite moves no bias") {
  Rig rig;
  REQUIRE(rig.engine->train_step(make_batch(4, 1), 1, 1.0).update.finite);
  const std::vector<float> before = rig.bias(1);
  const std::vector<float> nan(24, std::numeric_limits<float>::quiet_NaN());
  rig.engine->parameters().write(rig.engine->parameters().find("model.norm.weight"),
                                 std::as_bytes(std::span(nan)));
  const StepOutcome outcome = rig.engine->train_step(make_batch(4, 2), 2, 1.0);
  CHECK_FALSE(outcome.update.finite);
  double chosen = 0;
  for (const double count : outcome.routers.choices[0]) chosen += count;
  CHECK(chosen == 4 * 13 * 2);  // there was something to follow
  CHECK(rig.bias(1) == before);
}

TEST_CASE("more balance than without: the busiest expert of 60 steps has less to do") {
  const auto busiest = [](const std::vector<std::string>& overrides) {
    Rig rig(overrides);
    double most = 0;
    for (int step = 1; step <= 60; ++step) {
      const StepOutcome outcome =
          rig.engine->train_step(make_batch(4, static_cast<std::uint64_t>(step)), step, 1.0);
      if (step <= 40) continue;
      for (const auto& count : outcome.routers.choices) {
        most = std::max(most, *std::ranges::max_element(count));
      }
    }
    return most;
  };
  const std::string no_loss = "model.router_aux_loss_coef=0";
  const double moved = busiest({no_loss}), fixed = busiest({no_loss, "model.bias_update_speed=0"});
  CAPTURE(moved);
  CAPTURE(fixed);
  CHECK(moved < fixed);
}

}  // namespace llmtrain::engine
