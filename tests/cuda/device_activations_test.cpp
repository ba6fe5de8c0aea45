// Steps of an engine on the GPU whose activations are in the host's memory meanwhile, or in a file:
// the bits and the memory that are planned; of the former no waiting.
#include <dlfcn.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/backend.hpp"
#include "lib/base/activity.hpp"
#include "lib/base/philox.hpp"
#include "lib/plan/plan.hpp"
#include "tests/cuda/skip.hpp"
#include "tests/cuda_emulation/emulation.hpp"
#include "tests/support/engine_recipe.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kLength = 32, kSamples = 4;
using Overrides = std::vector<std::string>;

constexpr std::string_view kRecipe = R"(
recipe: 1
model: {architecture: llama, vocab_size: 61, hidden_size: 64, intermediate_size: 96,
        num_hidden_layers: 5, num_attention_heads: 2, max_position_embeddings: 32}
training: {seq_len: 32, micro_batch_size: 2, global_batch_size: 4, max_steps: 10}
optimizer: {lr: 1e-2}
)";
const std::vector<std::string> kAll{"block", "attention", "linear", "norm", "activation"};

class GpuEngine {
 public:
  /// `names`: of offload.activations, which are in a file through a pool of four blocks, or on the
  /// host.
  GpuEngine(const Overrides& overrides, const std::vector<std::string>& names, bool in_file = false)
      : gpu_(*kernels::load_backend(DeviceKind::cuda).backend),
        device_(gpu_.open(0), std::uint64_t{1} << 28) {
    recipe::load(recipe_,
                 {.file = "test.yaml", .text = std::string(kRecipe), .overrides = overrides});
    engine::EngineOptions options = recipe_.options(7);
    if (!names.empty()) {
      options.offloaded_activations =
          engine::ActivationOffloadOptions{.names = names,
                                           .gpu_has_file = in_file,
                                           .buffer_bytes = 4 * offload::ValueStore::kBlock,
                                           .directory = directory_.path()};
    }
    constexpr std::uint64_t kWorkspace = 1 << 20;
    plan_ = plan::make_plan(
        options, kSamples,
        engine::Target{.device = DeviceKind::cuda, .library_workspace_bytes = kWorkspace});
    engine_ = std::make_unique<engine::Engine>(
        engine::EnginePlace{.device = &device_,
                            .table = &gpu_.kernels(),
                            .library_workspace_bytes = kWorkspace,
                            .host_activation_bytes = plan_.host_activation_bytes()},
        options);
    engine_->initialize();
  }
  void launch(std::int64_t step) {
    engine::StepBatch batch;
    batch.resize(kSamples, kLength);
    const PhiloxKey key = philox_key(1, "test", "tokens");
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      batch.tokens[i] =
          static_cast<std::int32_t>(philox_below(key, static_cast<std::uint64_t>(step), i, 61));
      batch.targets[i] = (batch.tokens[i] * 7 + 3) % 61;
      batch.positions[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % kLength);
      ++batch.trained_tokens;
    }
    engine_->launch_step(batch, step, {});
  }
  /// Losses, norms and masters, to the bit, of four steps, of which one is launched ahead.
  std::vector<std::byte> story() {
    std::vector<std::byte> all;
    const auto add = [&](const auto& value) {
      const auto bytes = std::as_bytes(std::span(&value, 1));
      all.insert(all.end(), bytes.begin(), bytes.end());
    };
    const auto settle = [&] {
      const engine::StepOutcome outcome = engine_->settle_step();
      CHECK(outcome.update.finite);
      add(outcome.loss_sum);
      add(outcome.update.grad_norm);
    };
    for (std::int64_t step = 1; step <= 4; ++step) {
      device_.ledger().start_comparison(plan_.step_trace);
      launch(step);
      const auto difference = device_.ledger().stop_comparison();
      CHECK((difference ? to_string(*difference) : "") == "");
      while (engine_->steps_in_flight() > 1) settle();
    }
    settle();
    for (const auto& p : engine_->parameters().all()) {
      const Tensor& master = p->master();
      const std::size_t begin = all.size();
      all.resize(begin + master.view().bytes());
      device_.copy_to_host(std::span(all).subspan(begin), master);
    }
    return all;
  }
  engine::Engine* operator->() { return engine_.get(); }
  const plan::Plan& plan() const { return plan_; }

 private:
  TempDir directory_;
  const kernels::Backend& gpu_;
  EngineRecipe recipe_;
  Device device_;
  plan::Plan plan_;
  std::unique_ptr<engine::Engine> engine_;
};

struct Case {
  Overrides overrides;
  std::vector<std::string> names = kAll;
};

}  // namespace

TEST_CASE(
    "steps have their bits and their plans' memory with activations on the host and in files") {
  const std::vector<Case> cases{{{}},
                                {{"precision.compute=bf16"}},
                                {{"precision.compute=fp16"}, {"linear", "norm"}},
                                {{"activation_checkpoint.mode=full"}, {"block"}},
                                {{"activation_checkpoint.mode=sqrt"}, {"block"}}};
  for (const Case& c : cases) {
    CAPTURE(fmt::format("{} {}", fmt::join(c.overrides, " "), fmt::join(c.names, " ")));
    GpuEngine plain(c.overrides, {});
    const std::vector<std::byte> expected = plain.story();
    for (const bool in_file : {false, true}) {
      CAPTURE(in_file);
      GpuEngine away(c.overrides, c.names, in_file);
      CHECK(away.story() == expected);
      REQUIRE(away.plan().device_activations.has_value());
      const engine::DeviceActivationFacts planned = *away.plan().device_activations;
      const engine::DeviceActivationFacts facts = away->activation_shelf()->facts();
      CHECK(planned.down_bytes > 0);
      CHECK(facts.pinned_bytes == planned.pinned_bytes);
      CHECK(facts.down_bytes == 4 * planned.down_bytes);
      CHECK(facts.up_bytes == 4 * planned.up_bytes);
      CHECK(away->activation_shelf()->held_bytes() == 0);
      CHECK(away->activation_shelf()->traffic().has_value() == in_file);
    }
  }
}

TEST_CASE("a step whose activations come and go waits for nothing") {
  void* const plugin = ::dlopen(kernels::load_backend(DeviceKind::cuda).file.c_str(),
                                RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  const auto waits =
      reinterpret_cast<EmulatedCountFunction>(::dlsym(plugin, "emulated_host_waits"));
  using kernels::gpu_trial::kStandInAlone;
  if (kernels::gpu_trial::skip_if(waits == nullptr, kStandInAlone)) return;
  GpuEngine engine({}, kAll);
  const std::int64_t before = waits();
  engine.launch(1);
  engine.launch(2);
  CHECK(waits() == before);
  // Who settles a step waits for its inputs, each a sign of life, and once for the step.
  const std::uint64_t signs = activity::ticks();
  CHECK(engine->settle_step().update.finite);
  CHECK(engine->settle_step().update.finite);
  CHECK(waits() - before == 2 + static_cast<std::int64_t>(activity::ticks() - signs));
}

}  // namespace llmtrain::test
