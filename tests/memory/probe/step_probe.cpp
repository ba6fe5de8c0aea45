// One recipe: the plan, then real steps of the engine in an arena of exactly the planned extent.
#include <cstring>

#include "kernels/elementwise.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/base/units.hpp"
#include "lib/plan/plan.hpp"
#include "lib/train/recipe.hpp"
#include "tests/memory/probe/probes.hpp"
#include "tests/memory/probe/report.hpp"

namespace llmtrain::memory_probe {

namespace {

constexpr std::string_view kGpt2 = R"(
recipe: 1
run: {threads: 2}
model: {architecture: gpt2, vocab_size: 4096, hidden_size: 128, num_hidden_layers: 4,
        num_attention_heads: 4, max_position_embeddings: 128, resid_pdrop: 0.1, attn_pdrop: 0.1}
tokenizer: {type: bytes}
data: {sources: [{path: none.txt}]}
training: {seq_len: 128, micro_batch_size: 2, global_batch_size: 2, max_steps: 10}
)";
constexpr std::string_view kLlama = R"(
recipe: 1
run: {threads: 2}
model: {architecture: llama, vocab_size: 4096, hidden_size: 128, intermediate_size: 352,
        num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2,
        max_position_embeddings: 128}
tokenizer: {type: bytes}
data: {sources: [{path: none.txt}]}
training: {seq_len: 128, micro_batch_size: 2, global_batch_size: 2, max_steps: 10}
)";

engine::StepBatch random_batch(std::int64_t samples, std::int64_t seq_len, std::int64_t vocab) {
  engine::StepBatch batch;
  batch.resize(samples, seq_len);
  batch.trained_tokens = samples * seq_len;
  const PhiloxKey key = philox_key(1, "test", "tokens");
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const auto classes = static_cast<std::uint32_t>(vocab);
    batch.tokens[i] = static_cast<std::int32_t>(philox_below(key, 0, i, classes));
    batch.targets[i] = static_cast<std::int32_t>(philox_below(key, 1, i, classes));
    batch.positions[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % seq_len);
  }
  return batch;
}

// Faults: Fill, which every step launches, does something that no plan knows.
kernels::KernelFunction fill_without_fault = nullptr;

void with_hidden_vector(const kernels::KernelCtx& ctx, const void* kernel, const View& workspace) {
  const std::vector<char> hidden(1 << 20);
  fill_without_fault(ctx, kernel, workspace);
}

void with_kept_block(const kernels::KernelCtx& ctx, const void* kernel, const View& workspace) {
  // Taken once, before the second step; found by its pages only.
  static const std::vector<char> kept(160 << 20, 1);
  fill_without_fault(ctx, kernel, workspace);
}

void with_extra_tensor(const kernels::KernelCtx& ctx, const void* kernel, const View& workspace) {
  const Tensor extra = ctx.device->allocate({1 << 16}, DType::u8, Category::workspace, "extra");
  fill_without_fault(ctx, kernel, workspace);
}

kernels::KernelTable table_with(std::string_view fault) {
  const auto rows = kernels::cpu_table().rows();
  std::vector<kernels::KernelRow> changed(rows.begin(), rows.end());
  if (fault.empty()) return {"cpu", changed};
  fill_without_fault = kernels::cpu_table().find(kernels::Fill::name);
  for (kernels::KernelRow& row : changed) {
    if (row.name != kernels::Fill::name) continue;
    if (fault == "hidden_vector") row.run = with_hidden_vector;
    if (fault == "kept_block") row.run = with_kept_block;
    if (fault == "extra_tensor") row.run = with_extra_tensor;
    require(row.run != fill_without_fault, "no fault {}", fault);
  }
  return {"cpu", changed};
}

void compare_peaks(const plan::Plan& plan, const MemoryLedger& ledger, Findings& findings) {
  for (int i = 0; i < kNumPhases; ++i) {
    const Peak& planned = plan.peak(Phase(i));
    const Peak& real = ledger.peak(Phase(i));
    const auto compare = [&](std::string_view what, std::uint64_t r, std::uint64_t p) {
      if (r == p) return;
      findings.add(fmt::format("{} peak of {}: {} B instead of the plan's {} B",
                               to_string(Phase(i)), what, r, p));
    };
    for (std::size_t c = 0; c < kNumCategories; ++c) {
      const std::string_view name = to_string(Category(c));
      compare(name, real.per_category[c], planned.per_category[c]);
      compare(fmt::format("{} at the peak instant", name), real.at_peak[c], planned.at_peak[c]);
    }
    compare("all", real.total_bytes, planned.total_bytes);
  }
}

/// Steps and passes of one engine under watch.
class Watch {
 public:
  Watch(const plan::Plan& plan, engine::Engine& engine, std::uint64_t base, Findings& findings)
      : plan_(plan), engine_(engine), base_(base), findings_(findings) {}

  void step(const engine::StepBatch& batch, std::int64_t number) {
    MemoryLedger& ledger = engine_.device().ledger();
    ledger.start_comparison(plan_.step_trace);
    start_recording();
    const engine::StepOutcome outcome = engine_.train_step(batch, number, 1.0);
    const std::vector<Block> blocks = stop_recording();
    const std::string when = fmt::format("step {}", number);
    if (const auto difference = ledger.stop_comparison()) {
      findings_.add(fmt::format("{}: allocations differ from the plan's at {}", when,
                                to_string(*difference)));
    }
    if (!outcome.update.finite) findings_.add(fmt::format("{} is not finite", when));
    if (number == 1) {
      for (const Block& block : blocks) first_step_bytes_ += block.bytes;
      first_step_blocks_ = blocks.size();
      return;
    }
    findings_.add_blocks(when, blocks);
    resident_ = std::max(resident_, resident_bytes());
    findings_.check_resident(when, resident_bytes(), plan_.peak_bytes(), base_);
  }

  void evaluate(const engine::StepBatch& batch, bool first) {
    start_recording();
    engine_.evaluate(batch);
    const std::vector<Block> blocks = stop_recording();
    if (!first) findings_.add_blocks("evaluation", blocks);
  }

  std::uint64_t resident() const { return resident_; }
  std::string first_step() const {
    return fmt::format("{} blocks, {}", first_step_blocks_, format_bytes(first_step_bytes_));
  }

 private:
  const plan::Plan& plan_;
  engine::Engine& engine_;
  std::uint64_t base_;
  Findings& findings_;
  std::uint64_t resident_ = 0, first_step_bytes_ = 0;
  std::size_t first_step_blocks_ = 0;
};

void print_table(const plan::Plan& plan, const Device& device, const Watch& watch,
                 std::uint64_t base) {
  std::uint64_t ledger = 0;
  for (int i = 0; i < kNumPhases; ++i) {
    ledger = std::max(ledger, device.ledger().peak(Phase(i)).total_bytes);
  }
  const auto ratio = static_cast<double>(plan.extent_bytes()) / static_cast<double>(ledger);
  fmt::print("plan {:>10}  ledger {:>10}  RSS {:>10}  base {:>8}  arena/peak {:.4f}  step 1: {}\n",
             format_bytes(plan.peak_bytes()), format_bytes(ledger), format_bytes(watch.resident()),
             format_bytes(base), ratio, watch.first_step());
}

}  // namespace

int probe_steps(std::string_view family, const std::vector<std::string>& overrides, int steps,
                std::uint64_t at_least_bytes, std::string_view fault) {
  const std::uint64_t base = resident_bytes();
  train::Recipe recipe;
  recipe::load(recipe, {.file = "probe.yaml",
                        .text = std::string(family == "gpt2" ? kGpt2 : kLlama),
                        .overrides = overrides});
  const auto samples = static_cast<std::int64_t>(recipe.training.global_batch_size().value);
  const engine::EngineOptions options = recipe.engine_options();
  const plan::Plan plan = plan::make_plan(options, samples, recipe.threads());

  const kernels::KernelTable table = table_with(fault);
  const std::uint64_t slack = fault == "extra_tensor" ? 1 << 16 : 0;
  Device device(make_cpu_memory(), plan.extent_bytes() + slack);
  engine::Engine engine({.device = &device, .table = &table, .threads = recipe.threads()}, options);
  engine.initialize();
  Findings findings;
  Watch watch(plan, engine, base, findings);
  const engine::StepBatch batch = random_batch(samples, options.seq_len, options.model.vocab_size);
  const engine::StepBatch eval =
      random_batch(options.micro_batch_size, options.seq_len, options.model.vocab_size);
  for (int step = 1; step <= steps; ++step) {
    watch.step(batch, step);
    if (step < steps) watch.evaluate(eval, step == 1);
  }
  if (plan.peak_bytes() < at_least_bytes) {
    findings.add(fmt::format("the plan has less than {}", format_bytes(at_least_bytes)));
  }
  device.ledger().enter(Phase::save);
  compare_peaks(plan, device.ledger(), findings);
  print_table(plan, device, watch, base);
  return findings.count() == 0 ? 0 : 1;
}

}  // namespace llmtrain::memory_probe
