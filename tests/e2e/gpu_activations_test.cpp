// offload.activations on an emulated GPU: the same runs, bit for bit, with activations in the
// host's memory between the pass forth and the walk back.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/units.hpp"
#include "tests/e2e/emulated_gpu.hpp"
#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

const std::string kAll =
    "offload.activations=[block, attention, linear, norm, activation, experts, dropout]";
const Overrides kOnGpu{"run.device=cuda", "eval.max_samples=8", "checkpoint.interval=6"};

Overrides with_evaluations(const Overrides& settings) { return joined(kOnGpu, settings); }

std::int64_t peak(const Json& plan) {
  return plan["step"]["category_bytes"]["activations"].get<std::int64_t>();
}

struct Case {
  Overrides settings;
  std::string activations = kAll;
};

const std::vector<Case> kCases{
    {{"model.num_hidden_layers=4"}},
    {{"training.global_batch_size=8"}, "offload.activations=[linear, norm]"},
    {{"precision.compute=bf16"}, "offload.activations=[attention, activation]"},
    {{"precision.compute=fp8", "model.num_hidden_layers=4"}},
    {{"activation_checkpoint.mode=full", "precision.compute=bf16", "training.global_batch_size=8"},
     "offload.activations=[block]"},
    {{"activation_checkpoint.mode=sqrt", "model.num_hidden_layers=5"},
     "offload.activations=[block]"},
    {{"activation_checkpoint={mode: every_k, k: 2}", "model.num_hidden_layers=4",
      "precision.compute=fp16"}},
    {{"activation_checkpoint={mode: selective, ops: [norm, activation]}", "run.cuda_graphs=off"}},
    {{"model={architecture: gpt2, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, max_position_embeddings: 64, resid_pdrop: 0.1, "
      "attn_pdrop: 0.1}"}},
    {{"model={architecture: qwen3_moe, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 5, "
      "num_experts_per_tok: 3, max_position_embeddings: 64}"}},
    {{"precision.compute=bf16", "metrics.diagnostics_interval=2",
      "offload={optimizer: host, buffer: 96KiB}", "optimizer.max_grad_norm=0.01"}}};

}  // namespace

TEST_CASE("a GPU's run has the bits that it has without when its activations go to the host" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  for (const Case& c : kCases) {
    CAPTURE(fmt::format("{} {}", fmt::join(c.settings, " "), c.activations));
    const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
    run_well(plain, with_evaluations(c.settings));
    // Every other one has copies that are as early as can be, the others as late.
    const bool is_early = (&c - kCases.data()) % 2 == 0;
    const Variable copies("LLMTRAIN_FAKE_COPIES", is_early ? "early" : "late");
    const auto result = offloaded.run(with_evaluations(joined(c.settings, {c.activations})));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(outcome(offloaded.path) == outcome(plain.path));
    CHECK(holds(result.output, {"6 steps took memory as planned, allocation by allocation",
                                "activations: in the host's memory from the pass forth"}));
    CHECK_FALSE(std::filesystem::exists(offloaded.path / "run" / "offload"));
  }
}

TEST_CASE("the plan of activations on the host is what a run takes, and the GPU keeps two blocks" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace here(kTinyRecipe);
  const Overrides deep = with_evaluations({"model.num_hidden_layers=12"});
  const Json plain = plan_of(here, deep), offloaded = plan_of(here, joined(deep, {kAll}));
  CHECK_FALSE(plain.contains("host_activations"));
  CHECK_FALSE(offloaded.contains("activation_offload"));
  CHECK(offloaded["held_bytes"]["offload"] == 0);
  CHECK(peak(offloaded) < peak(plain) / 2);
  const Json deeper = plan_of(here, with_evaluations({"model.num_hidden_layers=24", kAll}));
  CHECK(peak(deeper) - peak(offloaded) < (peak(plain) - peak(offloaded)) / 10);
  const Json& host = offloaded["host_activations"];
  const auto bytes = [&](const char* key) { return host[key].get<std::uint64_t>(); };
  CHECK(bytes("pinned_bytes") > 0);
  // Two micro-batches one after the other; of each the last of twelve blocks is still there.
  CHECK(bytes("step_down_bytes") > bytes("pinned_bytes"));
  CHECK(bytes("step_up_bytes") * 12 == bytes("step_down_bytes") * 11);
  const auto ran = here.run(joined(deep, {kAll}));
  REQUIRE_MESSAGE(ran.exit_code == 0, ran.output);
  CHECK(
      holds(ran.output,
            {fmt::format("it used {} of its memory for them", format_bytes(bytes("pinned_bytes"))),
             fmt::format("activations: {} copied to the host and {} back",
                         format_bytes(6 * bytes("step_down_bytes")),
                         format_bytes(6 * bytes("step_up_bytes"))),
             "launches are made one by one in micro-batches, whose activations come and go"}));
  const auto text = here.call(joined({"plan", "recipe.yaml"}, joined(deep, {kAll})));
  CHECK(holds(text.output, {"activations: in the host's memory; a step brings ",
                            "pinned memory, activations", "one by one in micro-batches, whose"}));
}

TEST_CASE("what was saved with activations on the host goes on without, and goes back in place" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Overrides settings{"precision.compute=bf16", "training.max_steps=12",
                           "checkpoint.interval=2"};
  const Workspace whole(kTinyRecipe);
  run_well(whole, with_evaluations(settings));
  const std::string expected = outcome(whole.path, 12);
  for (const bool first : {true, false}) {
    const Workspace here(kTinyRecipe);
    const auto run = [&](bool away, const test::ProcessEvents& events) {
      return here.run(with_evaluations(joined(settings, away ? Overrides{kAll} : Overrides{})),
                      events);
    };
    const auto stopped = run(first, {.signal = SIGTERM, .signal_after = " 2/12 "});
    REQUIRE_MESSAGE(stopped.exit_code == 75, stopped.output);
    const auto rest = run(!first, {});
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(outcome(here.path, 12) == expected);
  }
}

TEST_CASE("a GPU's run of products with GELU in them has the same bits when they are made again" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Overrides settings{"precision.compute=bf16",
                           "model={architecture: gpt2, vocab_size: 257, hidden_size: 16, "
                           "num_hidden_layers: 3, num_attention_heads: 2, "
                           "max_position_embeddings: 64, resid_pdrop: 0.1}"};
  const Workspace plain(kTinyRecipe);
  run_well(plain, with_evaluations(settings));
  for (const char* again :
       {"{mode: full}", "{mode: sqrt}", "{mode: every_k, k: 2}", "{mode: budget, budget: 0.8}",
        "{mode: selective, ops: [activation]}", "{mode: selective, ops: [up_proj]}",
        "{mode: selective, ops: [norm, activation, up_proj]}"}) {
    CAPTURE(again);
    const Workspace here(kTinyRecipe);
    const std::string override = fmt::format("activation_checkpoint={}", again);
    const auto result = here.run(with_evaluations(joined(settings, {override})));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(outcome(here.path) == outcome(plain.path));
    CHECK(holds(result.output, {"6 steps took memory as planned, allocation by allocation"}));
  }
}

TEST_CASE("names of which a model saves nothing are said by a GPU's run, too" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Plugin emulated(LLMTRAIN_EMULATED_GPU);
  const Workspace here(kTinyRecipe);
  const auto idle = here.run(with_evaluations({"offload.activations=[experts]"}));
  REQUIRE_MESSAGE(idle.exit_code == 0, idle.output);
  CHECK(holds(idle.output, {"without effect on this rank: offload.activations"}));
}

}  // namespace llmtrain
