// offload.activations keeps what blocks have saved in a file until the walk back: the same runs,
// bit for bit.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/e2e/offload_runs.hpp"

namespace llmtrain {

namespace {

const std::string kAll =
    "offload={activations: [block, attention, linear, norm, activation, experts, dropout], "
    "activation_buffer: 1MiB}";

std::int64_t peak(const Json& plan) {
  return plan["step"]["category_bytes"]["activations"].get<std::int64_t>();
}

struct Case {
  std::string_view name;
  Overrides settings;
  std::string offload = kAll;
};

const std::vector<Case> kCases{
    {"all that is saved", {}},
    {"of some operations", {}, "offload={activations: [attention, activation]}"},
    {"of linear layers and norms",
     {"training.global_batch_size=8"},
     "offload={activations: [linear, norm], checksum: false}"},
    {"inputs of blocks that are computed again",
     {"activation_checkpoint.mode=full"},
     "offload={activations: [block]}"},
    {"inputs of segments", {"activation_checkpoint.mode=sqrt", "model.num_hidden_layers=5"}},
    {"with operations that are computed again",
     {"activation_checkpoint={mode: selective, ops: [norm, activation]}"}},
    {"of GPT-2, with dropout",
     {"model={architecture: gpt2, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, max_position_embeddings: 64, resid_pdrop: 0.1, "
      "attn_pdrop: 0.1}"}},
    {"of experts",
     {"model={architecture: qwen3_moe, vocab_size: 257, hidden_size: 16, num_hidden_layers: 3, "
      "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 5, "
      "num_experts_per_tok: 3, max_position_embeddings: 64}"}},
    {"in bf16, with clipping", {"precision.compute=bf16", "optimizer.max_grad_norm=0.01"}},
    {"beside states in a file", {}, kAll.substr(0, kAll.size() - 1) + ", optimizer: nvme}"}};

}  // namespace

TEST_CASE("a run has the bits that it has with its activations in memory, and memory as planned") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
    run_well(plain, c.settings);
    const auto result = offloaded.run(joined(c.settings, {c.offload}));
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    CHECK(outcome(offloaded.path) == outcome(plain.path));
    CHECK_MESSAGE(result.output.find("6 steps took memory as planned, allocation by allocation") !=
                      std::string::npos,
                  result.output);
    CHECK(result.output.find("micro-batches waited") != std::string::npos);
    CHECK(std::filesystem::is_empty(offloaded.path / "run" / "offload"));
  }
}

TEST_CASE("the plan has the pool for activations, their file, and what stays in memory") {
  const Workspace here(kTinyRecipe);
  const Overrides deep{"model.num_hidden_layers=12"};
  const Json plain = plan_of(here, deep), offloaded = plan_of(here, joined(deep, {kAll}));
  CHECK(offloaded["held_bytes"]["offload"].get<std::int64_t>() == (1 << 20) + 4096);
  const auto file = offloaded["activation_offload"]["file_bytes"].get<std::int64_t>();
  const auto written = offloaded["activation_offload"]["step_written_bytes"].get<std::int64_t>();
  CHECK(written > 0);
  CHECK(file > 0);
  CHECK_FALSE(plain.contains("activation_offload"));
  // Values of the pool may be gone before the disk has written them, and their places be free.
  const Json wider = plan_of(here, joined(deep, {kAll, "offload.activation_buffer=2MiB"}));
  CHECK(wider["activation_offload"]["file_bytes"].get<std::int64_t>() == file + (1 << 20));
  // Twelve blocks' become those of one or two.
  CHECK(peak(offloaded) < peak(plain) / 2);
  const Json deeper = plan_of(here, {"model.num_hidden_layers=24", kAll});
  CHECK(peak(deeper) - peak(offloaded) < (peak(plain) - peak(offloaded)) / 10);
}

TEST_CASE("a disk that has room for the planned file and for no more is enough") {
  const Workspace here(kTinyRecipe);
  const auto planned = plan_of(here, {kAll})["activation_offload"]["file_bytes"].get<std::size_t>();
  CHECK(here.run({kAll}, {.largest_file_bytes = planned}).exit_code == 0);
  const auto full = here.run({kAll, "run.output_dir=full"}, {.largest_file_bytes = 1 << 20});
  CHECK(full.exit_code == 7);
  CHECK(full.output.find("cannot take 1310720 bytes of disk") != std::string::npos);
}

TEST_CASE("names of which a model saves nothing are said, by run and plan alike") {
  const std::string_view line = "without effect on this rank: offload.activations";
  const Workspace here(kTinyRecipe);
  for (const std::string names : {"[block]", "[experts, dropout]", "[norm]"}) {
    CAPTURE(names);
    const Overrides overrides{"offload.activations=" + names,
                              "run.output_dir=" + names.substr(1, 4)};
    const bool is_idle = names != "[norm]";
    const auto planned = here.call(joined({"plan", "recipe.yaml"}, overrides));
    CHECK(planned.exit_code == 0);
    CHECK((planned.output.find(line) != std::string::npos) == is_idle);
    const auto trained = here.run(overrides);
    CHECK(trained.exit_code == 0);
    CHECK((trained.output.find(line) != std::string::npos) == is_idle);
  }
}

TEST_CASE("a benchmark of offloaded activations asks for a directory, and has one") {
  const Workspace here(kTinyRecipe);
  const Overrides bench{"bench", "recipe.yaml", "--steps", "1", "offload.activations=[norm]"};
  const auto refused = here.call(bench);
  CHECK(refused.exit_code == 2);
  CHECK(refused.output.find("offload.path: name the directory") != std::string::npos);
  CHECK(here.call(joined(bench, {"offload.path=fast"})).exit_code == 0);
}

TEST_CASE("activations that cannot be offloaded are refused when the recipe is checked") {
  const auto check_refused = [](const Overrides& overrides, const std::string& says) {
    CAPTURE(says);
    const Workspace here(kTinyRecipe);
    const auto result = here.call(joined({"check", "recipe.yaml"}, overrides));
    CHECK(result.exit_code == 2);
    CHECK_MESSAGE(result.output.find(says) != std::string::npos, result.output);
  };
  check_refused({"offload.activations=[attentions]"}, "offload.activations");
  check_refused({"offload.activation_buffer=1GiB"},
                "offload.activation_buffer=1GiB: does nothing without offload.activations");
  for (const std::string key : {"activation_buffer=1GiB", "path=fast", "checksum=false"}) {
    check_refused({"offload.activations=[norm]", "run.device=cuda", "offload." + key},
                  "offload." + key + ": is of files, and activations of a GPU go to the host");
  }
  check_refused({"offload.activation_place=nvme"},
                "offload.activation_place=nvme: does nothing without offload.activations");
  check_refused({"offload={activations: [norm], activation_place: host}", "run.device=cpu"},
                "the memory of a CPU is the host's, where activations are already");
  check_refused({"offload.activations=[norm]", "offload.buffer=1GiB"},
                "offload.buffer=1GiB: does nothing without offload.optimizer: host or nvme");
  const Workspace here(kTinyRecipe);
  const auto on_cpu =
      here.run({"offload={activations: [norm], activation_place: host}", "run.device=auto"});
  CHECK(on_cpu.exit_code == 2);
  CHECK(holds(on_cpu.output, {"where activations are already, and run.device is cpu here"}));
}

}  // namespace llmtrain
