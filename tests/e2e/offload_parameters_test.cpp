// offload.parameters: nvme keeps what products read in the file of optimizer states, and reads it
// for each unit of the model: the same runs, bit for bit.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

const Overrides kOffload{"offload={optimizer: nvme, parameters: nvme, buffer: 160KiB}"};
const Overrides kWithMasters{
    "offload={optimizer: nvme, master: nvme, parameters: nvme, buffer: 160KiB}"};

struct Case {
  std::string_view name;
  Overrides settings;
  Overrides offload = kOffload;
};

const std::vector<Case> kCases{
    {"in fp32", {}},
    {"in fp32, without states", {"optimizer={name: sgd, lr: 0.1}"}},
    {"in fp64, a tied table", {"precision.compute=fp64", "model.tie_word_embeddings=true"}},
    {"in bf16, masters in memory", {"precision.compute=bf16"}},
    {"in bf16, masters there, too", {"precision.compute=bf16"}, kWithMasters},
    {"in bf16 with remainders",
     {"precision={compute: bf16, master: bf16+remainder}", "optimizer.name=muon"}},
    {"with remainders there, too",
     {"precision={compute: bf16, master: bf16+remainder}", "optimizer.name=adamw_8bit",
      "optimizer.min_8bit_size=256"},
     kWithMasters},
    {"in bf16 without masters", {"precision={compute: bf16, master: none}"}},
    {"in fp16", {"precision.compute=fp16"}, kWithMasters},
    {"in fp8", {"precision={compute: fp8, fp8: {scaling: delayed, include: ['*']}}"}, kWithMasters},
    {"with blocks that are computed again",
     {"activation_checkpoint.mode=full", "training.global_batch_size=8"}},
    {"with activations in a file",
     {},
     {"offload={optimizer: nvme, parameters: nvme, activations: [attention, linear], "
      "activation_buffer: 1MiB}"}},
    {"of GPT-2, with dropout",
     {"model={architecture: gpt2, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, max_position_embeddings: 64, resid_pdrop: 0.1}"}},
    {"of experts",
     {"model={architecture: qwen3_moe, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 5, "
      "num_experts_per_tok: 3, max_position_embeddings: 64}"}},
    {"with the bits of any layout", {"run.determinism=layout", "run.virtual_workers=2"}},
    {"saved beside the run, and compared",
     {"checkpoint.async=true", "resilience.checksum_every=1", "precision.compute=bf16"}}};

}  // namespace

TEST_CASE("a run has the bits that it has with its parameters in memory, and memory as planned") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
    run_well(plain, c.settings);
    const auto result = offloaded.run(joined(c.settings, c.offload));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(outcome(offloaded.path) == outcome(plain.path));
    CHECK_MESSAGE(result.output.find("6 steps took memory as planned, allocation by allocation") !=
                      std::string::npos,
                  result.output);
    CHECK(result.output.find("parameters: ") != std::string::npos);
    CHECK(result.output.find("of parameters read besides, for which products waited") !=
          std::string::npos);
  }
}

TEST_CASE("what was saved with parameters in a file goes on without, and the other way round") {
  for (const Overrides& settings : {Overrides{},
                                    {"precision={compute: bf16, master: none}"},
                                    {"precision={compute: bf16, master: bf16+remainder}"}}) {
    CAPTURE(fmt::format("{}", fmt::join(settings, " ")));
    const Workspace whole(kTinyRecipe);
    run_well(whole, settings);
    for (const bool first : {true, false}) {
      const Workspace here(kTinyRecipe);
      const auto stopped = here.run(first ? joined(settings, kOffload) : settings,
                                    {.signal = SIGTERM, .signal_after = "step-00000002"});
      REQUIRE_MESSAGE(stopped.exit_code == 75, stopped.output);
      run_well(here, first ? settings : joined(settings, kOffload));
      CHECK(outcome(here.path) == outcome(whole.path));
    }
  }
}

TEST_CASE("a way back in place reads parameters into the file") {
  const Overrides spikes{"optimizer.lr=1",
                         "resilience={on_loss_spike: rollback, loss_spike_window: 1, "
                         "loss_spike_factor: 1.001, max_rollbacks: 2}"};
  const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
  const auto expected = plain.run(spikes);
  const auto result = offloaded.run(joined(spikes, kOffload));
  CHECK(result.exit_code == expected.exit_code);
  REQUIRE(expected.output.find("went back to step") != std::string::npos);
  CHECK(result.output.find("went back to step") != std::string::npos);
  CHECK(losses(plain) == losses(offloaded));
}

TEST_CASE("of values in a file that are not finite a warning tells, too") {
  const Overrides diverges{"optimizer={name: sgd, lr: 1.0e+42, max_grad_norm: null}",
                           "lr_scheduler={type: constant, warmup: 0}", "eval.interval=null"};
  std::vector<std::string> told;
  for (const Overrides& offload : {Overrides{}, kOffload}) {
    const Workspace here(kTinyRecipe);
    const auto result = here.run(joined(diverges, offload));
    INFO(result.output);
    CHECK(result.exit_code == 5);
    const std::size_t at = result.output.find(": not finite: ");
    REQUIRE(at != std::string::npos);
    told.push_back(result.output.substr(at, result.output.find('\n', at) - at));
  }
  CHECK(told[0] == told[1]);
  CHECK(told[0].find("the values of ") != std::string::npos);
}

TEST_CASE("the plan has the parameters of two units, and says what a step reads of the others") {
  const Workspace here(kTinyRecipe);
  const auto of = [&](int layers, const Overrides& overrides) {
    return plan_of(here, joined({fmt::format("model.num_hidden_layers={}", layers)}, overrides));
  };
  const auto peak = [](const Json& plan) {
    return plan["step"]["category_bytes"]["params"].get<std::int64_t>();
  };
  const Json plain = of(12, {}), offloaded = of(12, kOffload);
  const auto held = [](const Json& plan) { return plan["held_bytes"]["params"].get<double>(); };
  CHECK(held(offloaded) < held(plain) / 20);  // RoPE's tables
  CHECK(peak(offloaded) < peak(plain) / 2);
  CHECK(peak(of(24, kOffload)) == peak(offloaded));
  CHECK(offloaded["checkpoint_bytes"] == plain["checkpoint_bytes"]);
  const Json states = of(12, {"offload={optimizer: nvme, buffer: 160KiB}"});
  const auto file = [](const Json& plan) { return plan["offload"]["file_bytes"].get<double>(); };
  const double parameters = 4 * plain["parameters"].get<double>();
  CHECK(file(offloaded) > file(states) + 0.8 * parameters);  // chunks of another size end elsewhere
  CHECK(offloaded["offload"]["step_written_bytes"] == file(offloaded));
  // Two micro-batches; the look-up's table and the head's weight are read once, forth. Blocks of
  // the file are read as a whole, which here are chunks.
  const double reads = offloaded["offload"]["step_read_bytes"].get<double>() - file(offloaded);
  CHECK(reads > 2 * 1.5 * parameters);
  CHECK(reads < 2 * 4 * file(offloaded));
  const auto text = here.call(joined({"plan", "recipe.yaml"}, kOffload));
  CHECK(text.output.find("optimizer states and parameters") != std::string::npos);
  CHECK(text.output.find("of parameters for its products") != std::string::npos);
}

TEST_CASE("parameters that cannot be in a file are refused when the recipe is checked") {
  const auto check_refused = [](const Overrides& overrides, const std::string& says) {
    CAPTURE(says);
    const Workspace here(kTinyRecipe);
    const auto result = here.call(joined({"check", "recipe.yaml"}, overrides));
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(result.output.find(says) != std::string::npos, result.output);
  };
  check_refused({"offload.parameters=nvme"},
                "offload.parameters=nvme: does nothing without offload.optimizer: nvme");
  check_refused(joined(kOffload, {"metrics.diagnostics_interval=2"}),
                "looks at all parameters behind a step");
}

}  // namespace llmtrain
