// Noise on gradients from a recipe to the weights.
#include <cmath>
#include <map>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
#include "lib/engine/engine.hpp"
#include "tests/support/engine_recipe.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::engine {

namespace {

constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: llama, vocab_size: 31, hidden_size: 12, intermediate_size: 20, head_dim: 8,
        num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
        max_position_embeddings: 16, initializer_range: 0.4}
training: {seq_len: 10, micro_batch_size: 2, global_batch_size: 2, max_steps: 10}
precision: {compute: fp64}
optimizer: {name: sgd, lr: 0.5, max_grad_norm: 0.1}
)";

/// Weights after one step, by parameter.
std::map<std::string, std::vector<double>> weights(const std::vector<std::string>& overrides,
                                                   std::uint64_t seed) {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml", .text = std::string(kRecipe), .overrides = overrides});
  Device device(make_cpu_memory(), std::uint64_t{1} << 28);
  Engine engine({.device = &device, .table = &kernels::cpu_table()}, recipe.options(seed));
  engine.initialize();
  CHECK(
      engine.train_step(test::small_batch({{1, 2, 3, 4, 5}, {6, 7, 8, 9}}), 1, 1.0).update.applied);
  std::map<std::string, std::vector<double>> all;
  for (const auto& p : engine.parameters().all()) {
    const std::vector<std::byte> bytes = engine.parameters().read(*p);
    const auto* const values = reinterpret_cast<const double*>(bytes.data());
    all[p->name()].assign(values, values + bytes.size() / sizeof(double));
  }
  return all;
}

}  // namespace

TEST_CASE("a run's seed draws the noise on its gradients") {
  for (const std::uint64_t seed : {7, 8}) {
    const auto plain = weights({}, seed);
    const auto noisy = weights({"optimizer.gradient_noise={eta: 0.04}"}, seed);
    for (const auto& [name, values] : plain) {
      CAPTURE(name);
      const PhiloxKey key = philox_key(seed, "gradient noise", name);
      double largest = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double z = normal_quantile(unit_interval(philox_word(key, 0, i)));
        const double lost = values[i] - noisy.at(name)[i];
        largest = std::max(largest, std::abs(lost - 0.5 * 0.2 * z));
      }
      CHECK(largest < 1e-12);
    }
  }
}

}  // namespace llmtrain::engine
