// FP8 in whole steps: planned to the byte, close to bf16, and continued from its states.
#include <cmath>
#include <cstring>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "kernels/elementwise.hpp"
#include "lib/engine/target.hpp"
#include "tests/support/small_engine.hpp"

namespace llmtrain::engine {

namespace {

constexpr std::string_view kModel =
    "architecture: llama, vocab_size: 31, hidden_size: 32, intermediate_size: 48, head_dim: 8, "
    "num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, initializer_range: 0.2, "
    "max_position_embeddings: 16";
constexpr std::string_view kScalings[] = {"scaling: current", "scaling: delayed, amax_history: 3",
                                          "scaling: block"};

// A micro-batch has 80 rows, a multiple of 16.
constexpr int kSteps = 6, kLength = 10, kSamples = 16;

std::string fp8(std::string_view keys) {
  return fmt::format("{{compute: fp8, fp8: {{{}, include: [\"*\"]}}}}", keys);
}

struct Run {
  test::EngineRecipe recipe;
  std::unique_ptr<Device> device;
  std::unique_ptr<Engine> engine;

  Run(const std::string& precision, bool meta, std::string_view more = "", bool codes = false) {
    const std::string text = fmt::format(
        "recipe: 1\nmodel: {{{}}}\n"
        "training: {{seq_len: 10, micro_batch_size: 8, global_batch_size: 16, max_steps: 10}}\n"
        "precision: {}\noptimizer: {{lr: 1.0e-2}}\n{}",
        kModel, precision, more);
    recipe::load(recipe, {.file = "test.yaml", .text = text});
    device = std::make_unique<Device>(meta ? make_meta_memory() : make_cpu_memory(),
                                      std::uint64_t{1} << 28);
    engine = std::make_unique<Engine>(
        EnginePlace{.device = device.get(),
                    .table = meta ? &kernels::meta_table() : &kernels::cpu_table(),
                    .threads = 1,
                    .multiplies_codes = codes},
        recipe.options(7));
    engine->initialize();
  }

  static StepBatch batch() {
    std::vector<std::vector<std::int32_t>> samples(kSamples);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      for (int i = 0; i < kLength; ++i) {
        samples[s].push_back(
            static_cast<std::int32_t>((7 * s + static_cast<std::size_t>(i * i)) % 31));
      }
    }
    return test::small_batch(samples);
  }

  StepOutcome step(int number) {
    const StepOutcome outcome = engine->train_step(batch(), number, 1.0);
    REQUIRE(outcome.update.finite);
    return outcome;
  }
};

}  // namespace

TEST_CASE("steps in FP8 take memory as planned, recomputed or not, and learn as bf16 does") {
  Run wide("{compute: bf16}", false);
  const double first = wide.step(1).loss_sum;
  StepOutcome expected;
  for (int i = 2; i <= kSteps; ++i) expected = wide.step(i);
  CHECK(expected.loss_sum < 0.5 * first);
  CHECK_FALSE(expected.quantization.has_value());
  for (const std::string_view scaling : kScalings) {
    for (const std::string_view more : {"", "activation_checkpoint: {mode: full}\n"}) {
      CAPTURE(scaling);
      for (const bool codes : {false, true}) {
        CAPTURE(more);
        CAPTURE(codes);
        Run planned(fp8(scaling), true, more, codes), run(fp8(scaling), false, more, codes);
        StepOutcome found;
        for (int i = 1; i <= kSteps; ++i) {
          planned.device->ledger().start_trace();
          planned.engine->train_step(StepBatch::planned(kSamples, kLength), i, 1.0);
          run.device->ledger().start_trace();
          found = run.step(i);
          CHECK(run.device->ledger().stop_trace() == planned.device->ledger().stop_trace());
        }
        CHECK(run.device->ledger().peak(Phase::step).total_bytes ==
              planned.device->ledger().peak(Phase::step).total_bytes);
        CHECK(found.loss_sum != expected.loss_sum);
        CHECK(std::abs(found.loss_sum - expected.loss_sum) < 0.05 * first);
        REQUIRE(found.quantization.has_value());
        for (const double amax : found.quantization->amax) CHECK(amax > 0);
      }
    }
  }
}

TEST_CASE("products multiply codes where device, recipe and determinism let them") {
  const QuantizationOptions current{.scaling = OperandScaling::current};
  const QuantizationOptions delayed{.scaling = OperandScaling::delayed};
  const QuantizationOptions block{.scaling = OperandScaling::block};
  QuantizationOptions in_bf16 = current;
  in_bf16.products = OperandProducts::bf16;
  using enum kernels::Determinism;
  CHECK(obstacle_to_codes(current, run, true).empty());
  CHECK(obstacle_to_codes(delayed, fast, true).empty());
  CHECK(obstacle_to_codes(current, run, false) == "the device multiplies no codes");
  CHECK(obstacle_to_codes(block, run, true) == "precision.fp8.scaling is block");
  CHECK(obstacle_to_codes(in_bf16, run, true) == "precision.fp8.products is bf16");
  CHECK(obstacle_to_codes(current, layout, true) == "run.determinism is layout");
  const auto loss = [](const std::string& keys, bool codes) {
    return Run(fp8(keys), false, "", codes).step(1).loss_sum;
  };
  CHECK(loss("scaling: current", true) != loss("scaling: current", false));
  CHECK(loss("scaling: current, products: bf16", true) == loss("scaling: current", false));
  CHECK(loss("scaling: block", true) == loss("scaling: block", false));
}

TEST_CASE("recomputing a step in FP8 changes no bit, nor what is counted") {
  for (const std::string_view scaling : kScalings) {
    CAPTURE(scaling);
    Run kept(fp8(scaling), false),
        again(fp8(scaling), false, "activation_checkpoint: {mode: full}\n");
    for (int i = 1; i <= 4; ++i) {
      const StepOutcome a = kept.step(i), b = again.step(i);
      CHECK(a.loss_sum == b.loss_sum);
      CHECK(a.update.grad_norm == b.update.grad_norm);
      CHECK(a.quantization->amax == b.quantization->amax);
      CHECK(a.quantization->saturated == b.quantization->saturated);
    }
  }
}

TEST_CASE("delayed scales go on from the states of a checkpoint, and are what the step needs") {
  Run whole(fp8(kScalings[1]), false), part(fp8(kScalings[1]), false);
  for (int i = 1; i <= 3; ++i) {
    whole.step(i);
    part.step(i);
  }
  REQUIRE(part.engine->states().size() == whole.engine->states().size());
  int quantizers = 0;
  for (const optim::StateTensor& state : part.engine->states()) {
    if (state.name.find("#fp8_") == std::string::npos) continue;
    ++quantizers;
    kernels::launch(part.engine->context().kernel,
                    kernels::Fill{.y = state.tensor.reshape({state.tensor.numel()}), .value = 1});
  }
  CHECK(quantizers == 3 * 4 * 3);  // of three blocks, four products each
  CHECK(part.engine->state_names().size() == part.engine->states().size());
  for (std::size_t i = 0; i < part.engine->states().size(); ++i) {
    const Tensor& from = whole.engine->states()[i].tensor;
    std::memcpy(part.engine->states()[i].tensor.view().data, from.view().data, from.view().bytes());
  }
  CHECK(whole.step(4).loss_sum == part.step(4).loss_sum);
  CHECK(whole.step(5).loss_sum == part.step(5).loss_sum);
}

TEST_CASE("a step that is given up leaves delayed scales and their histories as they were") {
  Run run(fp8(kScalings[1]), false);
  for (int i = 1; i <= 2; ++i) run.step(i);
  const auto states = [&] {
    std::string bytes;
    for (const optim::StateTensor& state : run.engine->states()) {
      if (state.name.find("#fp8_") == std::string::npos) continue;
      bytes.append(state.tensor.view().as<const char>(), state.tensor.view().bytes());
    }
    return bytes;
  };
  const std::string before = states();
  REQUIRE(!before.empty());
  const Tensor& weights = run.engine->parameters().local().front()->compute();
  const View view = weights.view();
  const std::string good(view.as<const char>(), view.bytes());
  std::memset(view.data, 0xff, view.bytes());  // NaN
  CHECK_FALSE(run.engine->train_step(Run::batch(), 3, 1.0).update.finite);
  CHECK(states() == before);
  std::copy(good.begin(), good.end(), view.as<char>());
  run.step(4);
  CHECK(states() != before);
}

}  // namespace llmtrain::engine
