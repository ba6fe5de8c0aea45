#include "lib/engine/diagnostics.hpp"

#include <cmath>
#include <numeric>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/philox.hpp"
#include "lib/engine/engine.hpp"
#include "tests/support/engine_recipe.hpp"

namespace llmtrain::engine {

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: llama, vocab_size: 61, hidden_size: 24, intermediate_size: 40, head_dim: 10,
        num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
        max_position_embeddings: 16}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 6, max_steps: 10}
precision: {compute: fp64}
optimizer: {lr: 1e-2, max_grad_norm: 0.1}
)";

StepBatch make_batch(std::int64_t samples) {
  StepBatch batch;
  batch.resize(samples, 13);
  const PhiloxKey key = philox_key(3, "test", "tokens");
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<std::int32_t>(philox_below(key, 0, i, 61));
    batch.targets[i] = (batch.tokens[i] * 7 + 3) % 61;
    batch.positions[i] = static_cast<std::int32_t>(i % 13);
    ++batch.trained_tokens;
  }
  return batch;
}

struct Lab {
  explicit Lab(const std::vector<std::string>& overrides = {}, bool diagnostics = true)
      : device(make_cpu_memory(), std::uint64_t{1} << 28) {
    test::EngineRecipe recipe;
    recipe::load(recipe,
                 {.file = "test.yaml", .text = std::string(kRecipe), .overrides = overrides});
    EngineOptions options = recipe.options(7);
    options.diagnostics = diagnostics;
    engine.emplace(EnginePlace{.device = &device, .table = &kernels::cpu_table(), .threads = 2},
                   options);
    engine->initialize();
  }
  StepOutcome step(const StepBatch& batch, std::int64_t number, bool diagnose) {
    engine->launch_step(batch, number, {.diagnose = diagnose});
    return engine->settle_step();
  }
  std::vector<double> master(const Parameter& p) {
    const std::vector<std::byte> bytes = engine->parameters().read(p);
    const auto* const values = reinterpret_cast<const double*>(bytes.data());
    return {values, values + bytes.size() / sizeof(double)};
  }

  Device device;
  std::optional<Engine> engine;
};

double power_sum(const std::vector<double>& values, int power) {
  double sum = 0;
  for (const double x : values) sum += std::pow(x, power);
  return sum;
}

const TensorCensus& named(const std::vector<TensorCensus>& all, const std::string& name) {
  const auto found =
      std::ranges::find_if(all, [&](const TensorCensus& census) { return census.name == name; });
  REQUIRE(found != all.end());
  return *found;
}

double count_of(const TensorCensus& census) {
  return std::accumulate(census.counts.begin(), census.counts.end(), 0.0);
}

}  // namespace

TEST_CASE("a diagnosed step tells of the tensors that it has, before clipping and the update") {
  Lab lab;
  const StepBatch batch = make_batch(6);
  lab.step(batch, 1, false);
  std::vector<std::vector<double>> before;
  for (const auto& p : lab.engine->parameters().all()) before.push_back(lab.master(*p));
  const StepOutcome outcome = lab.step(batch, 2, true);
  REQUIRE(outcome.diagnostics);
  const DiagnosticsOutcome& found = *outcome.diagnostics;
  const auto parameters = lab.engine->parameters().all();
  REQUIRE(found.gradients.size() == parameters.size());
  REQUIRE(outcome.update.clip_scale < 1);
  double squared_norm = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    CAPTURE(p.name());
    CHECK(found.gradients[i].name == p.name());
    CHECK(found.weights[i].name == p.name());
    CHECK(found.updates[i].name == p.name());
    const auto* const g = p.grad().view().as<double>();
    const std::vector<double> gradient(g, g + p.grad().numel());
    const std::vector<double> after = lab.master(p);
    double moved = 0;
    for (std::size_t e = 0; e < after.size(); ++e) {
      moved += (after[e] - before[i][e]) * (after[e] - before[i][e]);
    }
    for (int k = 0; k < 4; ++k) {
      const auto at = static_cast<std::size_t>(k);
      CHECK(found.gradients[i].powers[at] ==
            doctest::Approx(power_sum(gradient, k + 1)).epsilon(1e-10));
      CHECK(found.weights[i].powers[at] ==
            doctest::Approx(power_sum(before[i], k + 1)).epsilon(1e-10));
    }
    CHECK(count_of(found.gradients[i]) == static_cast<double>(gradient.size()));
    CHECK(count_of(found.weights[i]) == static_cast<double>(gradient.size()));
    CHECK(found.updates[i].squared_update == doctest::Approx(moved).epsilon(1e-10));
    CHECK(found.updates[i].squared_value ==
          doctest::Approx(power_sum(before[i], 2)).epsilon(1e-10));
    squared_norm += found.gradients[i].powers[1];
  }
  CHECK(std::sqrt(squared_norm) == doctest::Approx(outcome.update.grad_norm).epsilon(1e-12));
}

TEST_CASE("inputs of linear layers and outputs of blocks are seen once, computed again or not") {
  const StepBatch batch = make_batch(6);
  std::vector<TensorCensus> expected;
  for (const char* mode : {"none", "full", "sqrt"}) {
    CAPTURE(mode);
    Lab lab({std::string("activation_checkpoint.mode=") + mode});
    const auto found = lab.step(batch, 1, true).diagnostics->activations;
    if (expected.empty()) expected = found;
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].counts == expected[i].counts);
      CHECK(found[i].amax == expected[i].amax);
    }
  }
  const double rows = 6 * 13;
  CHECK(count_of(named(expected, "model.layers.0")) == rows * 24);
  CHECK(count_of(named(expected, "model.layers.1")) == rows * 24);
  CHECK(count_of(named(expected, "model.layers.0.self_attn.q_proj")) == rows * 24);
  CHECK(count_of(named(expected, "model.layers.1.self_attn.o_proj")) == rows * 40);
  CHECK(count_of(named(expected, "model.layers.1.mlp.down_proj")) == rows * 40);
  for (const TensorCensus& census : expected) {
    CAPTURE(census.name);
    CHECK(count_of(census) > 0);
    CHECK(census.amax > 0);
  }
  // What a norm has scaled by ones has a mean square of one.
  const TensorCensus& normed = named(expected, "model.layers.0.mlp.gate_proj");
  CHECK(normed.powers[1] / (rows * 24) == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("the first micro-batch is the part of a step that noise is estimated from") {
  Lab lab;
  const StepBatch batch = make_batch(6);
  const StepOutcome whole = lab.step(batch, 1, true);
  REQUIRE(whole.diagnostics->noise);
  const NoiseSample noise = *whole.diagnostics->noise;
  CHECK(noise.tokens == 6 * 13);
  CHECK(noise.tokens_of_part == 2 * 13);
  CHECK(std::sqrt(noise.squared_norm) == doctest::Approx(whole.update.grad_norm).epsilon(1e-12));
  // A step of that part alone.
  Lab other({"training.global_batch_size=2"});
  const StepOutcome part = other.step(make_batch(2), 1, true);
  CHECK(std::sqrt(noise.squared_norm_of_part) ==
        doctest::Approx(part.update.grad_norm).epsilon(1e-12));
  CHECK(!part.diagnostics->noise);  // of one micro-batch
}

TEST_CASE("looking changes no bit, and takes no memory in a step") {
  const StepBatch batch = make_batch(6);
  const auto run = [&](bool diagnostics, bool diagnose) {
    Lab lab({"precision.compute=bf16"}, diagnostics);
    std::vector<double> results;
    std::vector<AllocationEvent> trace;
    for (int step = 1; step <= 4; ++step) {
      lab.device.ledger().start_trace();
      const StepOutcome outcome = lab.step(batch, step, diagnose && step % 2 == 0);
      trace = lab.device.ledger().stop_trace();
      CHECK(outcome.diagnostics.has_value() == (diagnose && step % 2 == 0));
      results.insert(results.end(), {outcome.loss_sum, outcome.update.grad_norm});
    }
    return std::pair(results, trace);
  };
  const auto plain = run(false, false), silent = run(true, false), looking = run(true, true);
  CHECK(looking.first == plain.first);
  CHECK(looking.second == silent.second);
}

TEST_CASE("a step is diagnosed alone, and only where there is memory for it") {
  const StepBatch batch = make_batch(6);
  Lab lab;
  lab.engine->launch_step(batch, 1, {});
  CHECK_THROWS_AS(lab.engine->launch_step(batch, 2, {.diagnose = true}), InternalError);
  lab.engine->settle_step();
  lab.engine->launch_step(batch, 2, {.diagnose = true});
  CHECK_THROWS_AS(lab.engine->launch_step(batch, 3, {}), InternalError);
  lab.engine->settle_step();
  Lab without({}, false);
  CHECK_THROWS_AS(without.engine->launch_step(batch, 1, {.diagnose = true}), InternalError);
}

}  // namespace llmtrain::engine
