// The training loop as a user runs it, with a batch ramp, accumulation, evaluations, samples and
// saves. The linker's --wrap sends Engine::launch_step through here, which tells where steps begin
// and end; should its name change, no step is seen and the probe says so.
#include <algorithm>
#include <fstream>
#include <optional>

#include "lib/base/philox.hpp"
#include "lib/base/units.hpp"
#include "lib/comm/world.hpp"
#include "lib/train/planned_time.hpp"
#include "lib/train/trainer.hpp"
#include "tests/memory/probe/probes.hpp"
#include "tests/memory/probe/report.hpp"

namespace llmtrain::memory_probe {

namespace {

constexpr int kSteps = 8;
constexpr std::string_view kRecipe = R"(
recipe: 1
run: {output_dir: run, threads: 2}
model: {architecture: llama, vocab_size: 257, hidden_size: 32, intermediate_size: 64,
        num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 256}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 4096}], eval_modulus: 4}
training: {seq_len: 256, micro_batch_size: 64, global_batch_size: 128, max_steps: 8,
           rampup_batch_size: {start: 64, increment: 64, samples: 192}}
optimizer: {lr: 1.0e-3}
precision: {compute: bf16}
checkpoint: {interval: 4}
eval: {interval: 3, max_samples: 64, sample_prompts: [word], sample_tokens: 8}
metrics: {interval: 1}
)";

void write_files() {
  std::ofstream text("text.txt");
  const PhiloxKey key = philox_key(3, "test", "text");
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    text << "word" << philox_below(key, 0, i, 1000) << (i % 9 == 8 ? "\n" : " ");
  }
  std::ofstream("recipe.yaml") << kRecipe;
}

struct LoopWatch {
  Findings findings;
  std::uint64_t planned_bytes = 0;
  std::uint64_t base = 0;
  std::uint64_t resident = 0;
  bool hides_vector = false;
  int steps = 0;
};
LoopWatch* loop = nullptr;

}  // namespace

// Itanium C++ ABI: a member function takes its object as the first argument.
void real_step(engine::Engine& engine, const engine::StepBatch& batch, std::int64_t step,
               const engine::StepOptions& options) asm("__real_" LAUNCH_STEP_SYMBOL);
void watched_step(engine::Engine& engine, const engine::StepBatch& batch, std::int64_t step,
                  const engine::StepOptions& options) asm("__wrap_" LAUNCH_STEP_SYMBOL);

void watched_step(engine::Engine& engine, const engine::StepBatch& batch, std::int64_t step,
                  const engine::StepOptions& options) {
  // The plan executes a step too.
  if (loop == nullptr || engine.device().is_meta()) return real_step(engine, batch, step, options);
  const std::vector<Block> before = stop_recording();
  start_recording();
  if (loop->hides_vector) const std::vector<char> hidden(1 << 20);
  real_step(engine, batch, step, options);
  const std::vector<Block> within = stop_recording();
  if (++loop->steps > 1) {
    loop->findings.add_blocks(fmt::format("before step {}", step), before);
    loop->findings.add_blocks(fmt::format("in step {}", step), within);
    loop->resident = std::max(loop->resident, resident_bytes());
    loop->findings.check_resident(fmt::format("step {}", step), resident_bytes(),
                                  loop->planned_bytes, loop->base);
  }
  start_recording();
}

int probe_loop(std::string_view fault) {
  LoopWatch watch{.base = resident_bytes(), .hides_vector = fault == "hidden_vector"};
  write_files();
  const auto recipe = train::load_recipe("recipe.yaml", {});
  {
    const auto plain = train::load_recipe("recipe.yaml", {});
    watch.planned_bytes =
        train::plan_run(*plain, plain->geometry(), std::nullopt).plan.peak_bytes();
  }
  loop = &watch;
  const auto world = World::join({});
  const ExitCode code = train::run(*recipe, "recipe.yaml", *world);
  loop = nullptr;
  for (const Block& block : stop_recording()) {
    fmt::print("after the last step: {}\n", to_string(block));
  }
  if (code != ExitCode::done) watch.findings.add("the run did not end");
  if (watch.steps != kSteps) {
    watch.findings.add(fmt::format("{} steps seen instead of {}", watch.steps, kSteps));
  }
  fmt::print("plan {:>10}  RSS {:>10}  base {:>8}\n", format_bytes(watch.planned_bytes),
             format_bytes(watch.resident), format_bytes(watch.base));
  return watch.findings.count() == 0 ? 0 : 1;
}

}  // namespace llmtrain::memory_probe
