// Experts with limited room, in whole steps.
#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
#include "lib/engine/decoder_session.hpp"
#include "tests/support/engine_recipe.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::engine {

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: qwen3_moe, vocab_size: 61, hidden_size: 24, intermediate_size: 40,
        head_dim: 10, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
        max_position_embeddings: 32, num_experts: 6, num_experts_per_tok: 2,
        moe_intermediate_size: 12, initializer_range: 0.3}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}
precision: {compute: fp64}
optimizer: {lr: 1e-2}
)";
constexpr std::int64_t kTokens = 13, kExperts = 6, kChosen = 2;

StepBatch make_batch(std::int64_t samples) {
  StepBatch batch;
  batch.resize(samples, kTokens);
  const PhiloxKey key = philox_key(5, "test", "tokens");
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<std::int32_t>(philox_below(key, 0, i, 61));
    batch.targets[i] = (batch.tokens[i] * 7 + 3) % 61;
    batch.doc_begin[i] = 0;
    batch.positions[i] = static_cast<std::int32_t>(i % kTokens);
    ++batch.trained_tokens;
  }
  return batch;
}

struct Rig {
  explicit Rig(const std::vector<std::string>& overrides) {
    recipe::load(recipe,
                 {.file = "test.yaml", .text = std::string(kRecipe), .overrides = overrides});
    engine.emplace(EnginePlace{.device = &device, .table = &kernels::cpu_table(), .threads = 2},
                   recipe.options(7));
    engine->initialize();
  }
  StepOutcome step() { return engine->train_step(make_batch(4), 1, 1.0); }

  test::EngineRecipe recipe;
  Device device{make_cpu_memory(), std::uint64_t{1} << 28};
  std::optional<Engine> engine;
};

}  // namespace

TEST_CASE("an expert has room for its part of the even share, rounded up") {
  CHECK(ops::expert_capacity(1, 12, 2, 6) == 4);
  CHECK(ops::expert_capacity(1, 13, 2, 6) == 5);
  CHECK(ops::expert_capacity(1.25, 12, 2, 6) == 5);
  CHECK(ops::expert_capacity(0.001, 12, 2, 6) == 1);
  CHECK(ops::expert_capacity(100, 12, 2, 6) == 12);
  // 0.07 * 100 is a little more than 7 in binary.
  CHECK(ops::expert_capacity(0.07, 100, 1, 1) == 7);
}

TEST_CASE("what is dropped is counted, goes by sequence and not by micro-batch") {
  std::optional<StepOutcome> first;
  for (const char* size : {"1", "2", "4"}) {
    CAPTURE(size);
    Rig rig({"model.capacity_factor=0.6", std::string("training.micro_batch_size=") + size});
    const StepOutcome outcome = rig.step();
    REQUIRE(outcome.routers.kept.size() == 2);
    for (std::size_t block = 0; block < 2; ++block) {
      double chosen = 0;
      for (const double count : outcome.routers.choices[block]) chosen += count;
      CHECK(chosen == 4 * kTokens * kChosen);
      // Four sequences, of each of which an expert has room for three choices: 0.6 * 13 * 2 / 6.
      CHECK(outcome.routers.kept[block] <= 4 * kExperts * 3);
      CHECK(outcome.routers.kept[block] >= 4 * kExperts * 2);
    }
    if (!first) first = outcome;
    CHECK(outcome.routers.kept == first->routers.kept);
    CHECK(outcome.loss_sum == test::relative(first->loss_sum, 1e-13));
    CHECK(outcome.update.grad_norm == test::relative(first->update.grad_norm, 1e-12));
  }
}

TEST_CASE("losses of routers and loads see the choices before some are dropped") {
  Rig all({}), some({"model.capacity_factor=0.6"});
  const RouterOutcome before = all.step().routers, after = some.step().routers;
  CHECK(before.kept.empty());
  // The second block has other rows to choose for.
  CHECK(after.choices[0] == before.choices[0]);
  CHECK(after.balance[0] == before.balance[0]);
  CHECK(after.z[0] == before.z[0]);
  CHECK(after.balance[1] != before.balance[1]);
}

TEST_CASE("an evaluation drops as training does, whatever its micro-batches") {
  Rig all({}), some({"model.capacity_factor=0.6"});
  Rig one({"model.capacity_factor=0.6", "training.micro_batch_size=1"});
  const double loss = some.engine->evaluate(make_batch(4)).loss_sum;
  CHECK(loss == test::relative(one.engine->evaluate(make_batch(4)).loss_sum, 1e-13));
  CHECK(std::abs(loss - all.engine->evaluate(make_batch(4)).loss_sum) > 1e-3);
  CHECK(loss == test::relative(some.step().loss_sum, 1e-13));
}

TEST_CASE("text that is generated drops no token") {
  Rig all({}), some({"model.capacity_factor=0.2"});
  DecoderSession expected(*all.engine, 12), found(*some.engine, 12);
  const std::vector<std::int32_t> text{3, 14, 15, 9, 26, 5, 30, 8, 9, 7};
  CHECK(found.append(std::span(text).first(9)) == expected.append(std::span(text).first(9)));
  CHECK(found.append(std::span(text).subspan(9)) == expected.append(std::span(text).subspan(9)));
}

}  // namespace llmtrain::engine
