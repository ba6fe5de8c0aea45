// Whole runs on a GPU beside the same on the CPU, and who waits for a step with experts.
#include <cmath>
#include <dlfcn.h>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/backend.hpp"
#include "lib/base/philox.hpp"
#include "lib/engine/engine.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/support/engine_recipe.hpp"

namespace llmtrain::test {

using kernels::gpu_trial::kStandInAlone;
using kernels::gpu_trial::skip_if;

namespace {

enum class Where : std::uint8_t { cpu, gpu };

constexpr std::int64_t kSamples = 4, kLength = 13, kVocab = 61;
constexpr std::string_view kDense = R"(
recipe: 1
model: {architecture: llama, vocab_size: 61, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 16}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 20}
optimizer: {lr: 1e-2, max_grad_norm: 0.5}
)";
constexpr std::string_view kExperts = R"(
recipe: 1
model: {architecture: mixtral, vocab_size: 61, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2,
        num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 16, num_local_experts: 4,
        num_experts_per_tok: 2, router_aux_loss_coef: 0.02}
training: {seq_len: 13, micro_batch_size: 2, global_batch_size: 4, max_steps: 20}
optimizer: {lr: 1e-2, max_grad_norm: 0.5}
)";

/// The model of a recipe on the CPU or on the GPU, and batches that both see alike.
class Trainee {
 public:
  Trainee(std::string_view recipe, Where where)
      : gpu_(kernels::load_backend(DeviceKind::cuda).backend),
        device_(where == Where::gpu ? gpu_->open(0) : make_cpu_memory(), std::uint64_t{1} << 28) {
    recipe::load(recipe_, {.file = "test.yaml", .text = std::string(recipe)});
    engine_ = std::make_unique<engine::Engine>(
        engine::EnginePlace{.device = &device_,
                            .table = where == Where::gpu ? &gpu_->kernels() : &kernels::cpu_table(),
                            .library_workspace_bytes = std::uint64_t{1} << 20},
        recipe_.options(7));
    engine_->initialize();
  }
  void launch(std::int64_t step) {
    batch_.resize(kSamples, kLength);
    batch_.trained_tokens = kSamples * kLength;
    const PhiloxKey key = philox_key(1, "test", "tokens");
    for (std::size_t i = 0; i < batch_.tokens.size(); ++i) {
      const auto draw = [&](std::uint64_t word) {
        return static_cast<std::int32_t>(
            philox_below(key, static_cast<std::uint64_t>(step), 2 * i + word, kVocab));
      };
      batch_.tokens[i] = draw(0);
      batch_.targets[i] = draw(1) % 7;  // there is something to learn
    }
    engine_->launch_step(batch_, step, {});
  }
  engine::Engine* operator->() { return engine_.get(); }

 private:
  const kernels::Backend* gpu_;
  EngineRecipe recipe_;
  Device device_;
  std::unique_ptr<engine::Engine> engine_;
  engine::StepBatch batch_;
};

}  // namespace

TEST_CASE("a run in fp32 on a GPU follows the CPU's") {
  for (const std::string_view recipe : {kDense, kExperts}) {
    CAPTURE(recipe);
    Trainee cpu(recipe, Where::cpu), gpu(recipe, Where::gpu);
    double first = 0, last = 0;
    for (std::int64_t step = 1; step <= 20; ++step) {
      CAPTURE(step);
      cpu.launch(step);
      gpu.launch(step);
      const engine::StepOutcome expected = cpu->settle_step(), found = gpu->settle_step();
      CHECK(std::abs(found.loss_sum - expected.loss_sum) <= 1e-4 * expected.loss_sum);
      CHECK(std::abs(found.update.grad_norm - expected.update.grad_norm) <=
            1e-3 * expected.update.grad_norm);
      (step == 1 ? first : last) = expected.loss_sum;
    }
    CHECK(last < 0.8 * first);
  }
}

TEST_CASE("launching a step with experts waits for nothing") {
  void* const plugin = ::dlopen(kernels::load_backend(DeviceKind::cuda).file.c_str(),
                                RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const auto waits = reinterpret_cast<std::int64_t (*)()>(::dlsym(plugin, "emulated_host_waits"));
  if (skip_if(waits == nullptr, kStandInAlone)) return;
  Trainee gpu(kExperts, Where::gpu);
  const std::int64_t before = waits();
  gpu.launch(1);
  gpu.launch(2);
  CHECK(waits() == before);
  CHECK(gpu->settle_step().update.finite);
  CHECK(waits() > before);
  gpu->settle_step();
}

}  // namespace llmtrain::test
