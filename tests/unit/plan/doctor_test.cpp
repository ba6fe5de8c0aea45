#include "lib/plan/doctor.hpp"

#include <set>

#include <doctest/doctest.h>

#include "kernels/code_matmul.hpp"
#include "lib/engine/sections.hpp"
#include "lib/plan/kernel_cases.hpp"
#include "lib/plan/kernel_clock.hpp"
#include "tests/support/engine_recipe.hpp"

namespace llmtrain::plan {

namespace {

constexpr std::string_view kGpt2 = R"(
recipe: 1
model: {architecture: gpt2, vocab_size: 61, hidden_size: 24, num_hidden_layers: 2,
        num_attention_heads: 3, max_position_embeddings: 16, resid_pdrop: 0.1, attn_pdrop: 0.1}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}
optimizer: {lr: 1e-2}
)";
constexpr std::string_view kLlama = R"(
recipe: 1
model: {architecture: llama, vocab_size: 61, hidden_size: 24, intermediate_size: 40, head_dim: 10,
        num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
        max_position_embeddings: 16, tie_word_embeddings: true}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}
optimizer: {lr: 1e-2}
)";

std::set<KernelKey> measured_keys() {
  KernelBench bench(kernels::cpu_table(), 1, std::uint64_t{32} << 20);
  std::set<KernelKey> keys;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const RowCase& row_case : row_cases()) {
      if (row_case.fp32_only && dtype != DType::f32) continue;
      const LaunchTime time = row_case.launch(bench, dtype, 3);
      CAPTURE(row_case.what);
      CHECK(keys.insert(time.key).second);
      CHECK(time.point.position.size() == num_axes(time.key.name));
      CHECK(time.point.work > 0);
    }
    for (int form = 0; form < kNumForms; ++form) {
      const LaunchTime time = launch_matmul(bench, dtype, form, 3, 5, 7);
      CHECK(time.key == KernelKey{"matmul", dtype, form});
      CHECK(time.point.position == std::vector<double>{3, 5, 7});
      CHECK(time.point.work == 2 * 3 * 5 * 7);
      keys.insert(time.key);
    }
    for (const bool backward : {false, true}) {
      const LaunchTime time = launch_attention(bench, dtype, backward, 8, 64, 16);
      CHECK(time.point.position == std::vector<double>{8, 64, 16});
      CHECK(time.point.work == (backward ? 5 : 2) * 8 * 64.0 * 64 * 16);
      keys.insert(time.key);
    }
  }
  return keys;
}

}  // namespace

TEST_CASE("every kernel of a step is measured") {
  const std::set<KernelKey> keys = measured_keys();
  for (const std::string_view text : {kGpt2, kLlama}) {
    for (const char* compute : {"fp32", "bf16", "fp16"}) {
      for (const char* optimizer :
           {"adamw", "sgd", "momentum", "amsgrad", "adam_mini", "adafactor", "came", "sm3",
            "galore", "ldadamw", "q_galore", "adamw_8bit", "lion_8bit"}) {
        test::EngineRecipe recipe;
        recipe::load(recipe, {.file = "test.yaml",
                              .text = std::string(text),
                              .overrides = {std::string("precision.compute=") + compute,
                                            std::string("optimizer.name=") + optimizer}});
        const Plan plan = make_plan(recipe.options(1), 4, 1);
        for (const LaunchGroup& group : plan.step.launches) {
          const KernelKey key = key_of(group.name, group.dtype, group.sizes);
          CAPTURE(to_string(key));
          CHECK(keys.contains(key));
        }
      }
    }
  }
}

TEST_CASE("every kernel of the CPU is measured") {
  std::set<std::string> measured;
  for (const KernelKey& key : measured_keys()) measured.insert(key.name);
  for (const kernels::KernelRow& row : kernels::cpu_table().rows()) {
    CAPTURE(row.name);
    if (row.name == kernels::CodeMatmul::name) continue;  // no run on a CPU has any
    const std::string_view name = timed_name({.name = row.name, .cost = {}, .dtype = DType::f32});
    CHECK(measured.contains(std::string(name)));
  }
}

TEST_CASE("the clock counts what the plan counts") {
  test::EngineRecipe recipe;
  recipe::load(recipe, {.file = "test.yaml", .text = std::string(kGpt2), .overrides = {}});
  const engine::EngineOptions options = recipe.options(1);
  const Plan plan = make_plan(options, 4, 1);
  std::map<std::string, std::int64_t> planned;
  for (const LaunchGroup& group : plan.step.launches) {
    planned[table_row(group.name, group.dtype, group.sizes)] += group.count;
  }

  KernelClock clock(kernels::cpu_table());
  Device device(make_cpu_memory(), std::uint64_t{1} << 26);
  engine::Engine engine(
      {.device = &device, .table = &clock.table(), .threads = 1, .recorder = &clock}, options);
  engine.initialize();
  clock.reset();
  engine::StepBatch batch;
  batch.resize(4, 13);
  batch.trained_tokens = 4 * 13;
  engine.train_step(batch, 1, 1.0);
  std::map<std::string, std::int64_t> timed;
  for (const KernelTime& time : clock.times()) {
    timed[time.name] = time.count;
    CHECK(time.seconds > 0);
  }
  CHECK(timed == planned);
}

}  // namespace llmtrain::plan
