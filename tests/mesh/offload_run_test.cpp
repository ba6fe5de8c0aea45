// `llmtrain run` under mpirun with optimizer states, masters and parameters in a file of each rank.
#include <csignal>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

TEST_CASE("ranks have the bits that they have with all of it in memory, and go on so") {
  using Overrides = std::vector<std::string>;
  struct Case {
    Overrides layout, settings;
    bool masters = false, parameters = false;
    int ranks = 2;
  };
  const std::vector<Case> all{
      {{"parallelism.zero=2", "training.micro_batch_size=2"}, {"precision.compute=bf16"}},
      {{"parallelism.zero=2", "training.micro_batch_size=2"}, {"precision.compute=bf16"}, true},
      {{"parallelism.zero=3", "training.micro_batch_size=2"},
       {"precision={compute: bf16, master: bf16+remainder}", "optimizer.name=lion"},
       true},
      {{"parallelism.tp=2"}, {"optimizer.name=adafactor", "precision.compute=bf16"}, true},
      {{"parallelism.zero=0"}, {"precision.compute=bf16", "resilience.checksum_every=1"}, true},
      {{"parallelism.zero=3", "training.micro_batch_size=2"},
       {"optimizer.name=adamw_8bit", "optimizer.min_8bit_size=300", "precision.compute=fp32"}},
      {{"parallelism.zero=2", "training.micro_batch_size=2"},
       {"precision.compute=bf16", "optimizer.state_dtype=bf16"}},
      {{"parallelism.zero=1", "training.micro_batch_size=2"}, {"optimizer.name=muon"}},
      {{"parallelism.zero=0"}, {"optimizer.name=lion"}},
      {{"parallelism.tp=2"}, {"optimizer.name=adafactor", "optimizer.beta1=0.9"}},
      {{"parallelism.tp=2"}, {"optimizer.name=muon"}},
      {{"parallelism.pp=2"}, {"optimizer.name=adamw"}},
      {{"parallelism.zero=3", "training.micro_batch_size=2"}, {}, false, true},
      {{"parallelism.zero=3", "training.micro_batch_size=2", "parallelism.pp_schedule=1f1b"},
       {"precision={compute: bf16, master: bf16+remainder}", "optimizer.name=muon"},
       true,
       true},
      {{"parallelism.zero=3", "parallelism.sp=2"},
       {"precision={compute: bf16, master: none}", "resilience.checksum_every=1"},
       false,
       true},
      {{"parallelism={dp: 2, dp_replicate: 2, zero: 1}", "training.micro_batch_size=2"},
       {"resilience.checksum_every=1"},
       false,
       true},
      {{"parallelism.tp=2"}, {"precision.compute=bf16", "optimizer.name=adafactor"}, true, true},
      {{"parallelism={dp: 4, dp_replicate: 2, zero: 3}"},
       {"resilience.checksum_every=1"},
       false,
       true,
       4},
      {{"parallelism={dp: 2, ep: 2, zero: 3}"},
       {"model={architecture: qwen3_moe, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2, "
        "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 4, "
        "num_experts_per_tok: 2, max_position_embeddings: 64}"},
       false,
       true},
      {{"parallelism.pp=2", "parallelism.pp_schedule=zb_h1"}, {}, false, true},
      {{"parallelism={pp: 2, zero: 3}"},
       {"precision.compute=fp64", "eval.interval=2", "eval.max_samples=7"},
       false,
       true},
      {{"parallelism={pp: 2, pp_schedule: dualpipev}", "model.num_hidden_layers=4"},
       {"precision.compute=bf16"},
       true,
       true}};
  for (const Case& c : all) {
    CAPTURE(fmt::format("{} {}", fmt::join(c.layout, " "), fmt::join(c.settings, " ")));
    const Workshop w;
    const auto run = [&](std::string_view name, bool offload, ProcessEvents events = {}) {
      Overrides overrides = c.settings;
      overrides.insert(overrides.end(), c.layout.begin(), c.layout.end());
      overrides.push_back(fmt::format("run.output_dir={}", name));
      if (offload) {
        const auto place = [](bool in_file) { return in_file ? "nvme" : "none"; };
        overrides.push_back(
            fmt::format("offload={{optimizer: nvme, master: {}, parameters: {}, buffer: 160KiB}}",
                        place(c.masters), place(c.parameters)));
      }
      events.limit_seconds = 60;
      return w.run(c.ranks, overrides, events);
    };
    const ProcessResult plain = run("plain", false);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
    const ProcessResult offloaded = run("offloaded", true);
    REQUIRE_MESSAGE(offloaded.exit_code == 0, offloaded.output);
    CHECK(offloaded.output.find("took memory as planned") != std::string::npos);
    CHECK(losses_and_norms(w.scratch / "offloaded") == losses_and_norms(w.scratch / "plain"));
    const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
    for (const bool first : {true, false}) {
      const std::string name = first ? "with-first" : "without-first";
      REQUIRE(run(name, first, stop).exit_code != 0);
      const ProcessResult rest = run(name, !first);
      REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
      CHECK(rest.output.find("resumed from step") != std::string::npos);
      CHECK(losses_and_norms(w.scratch / name) == losses_and_norms(w.scratch / "plain"));
    }
  }
}

TEST_CASE("data ranks that would each keep all parameters in a file are refused") {
  const Workshop w;
  const ProcessResult result = w.run(2,
                                     {"parallelism.zero=2", "training.micro_batch_size=2",
                                      "offload={optimizer: nvme, parameters: nvme}"},
                                     {.limit_seconds = 60});
  CHECK(result.exit_code != 0);
  CHECK_MESSAGE(result.output.find("each of 2 data ranks would have a file with all parameters") !=
                    std::string::npos,
                result.output);
}

TEST_CASE("ranks have the bits that they have with their activations in memory") {
  using Overrides = std::vector<std::string>;
  struct Case {
    int ranks;
    Overrides layout;
  };
  const std::vector<Case> all{
      {2, {"parallelism.zero=3", "training.micro_batch_size=2"}},
      {2, {"parallelism.tp=2", "activation_checkpoint.mode=full"}},
      {2, {"parallelism.sp=2", "parallelism.sp_algo=ring"}},
      {2, {"parallelism.pp=2", "parallelism.pp_schedule=zb_h1"}},
      {2, {"parallelism.pp=2", "parallelism.pp_schedule=dualpipev", "model.num_hidden_layers=4"}}};
  for (const Case& c : all) {
    CAPTURE(fmt::format("{}", fmt::join(c.layout, " ")));
    const Workshop w;
    const auto run = [&](std::string_view name, bool offload) {
      Overrides overrides = c.layout;
      overrides.push_back(fmt::format("run.output_dir={}", name));
      if (offload) {
        overrides.emplace_back(
            "offload={activations: [block, attention, linear, norm, activation, dropout], "
            "activation_buffer: 1MiB}");
      }
      return w.run(c.ranks, overrides, {.limit_seconds = 60});
    };
    const ProcessResult plain = run("plain", false);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
    const ProcessResult offloaded = run("offloaded", true);
    REQUIRE_MESSAGE(offloaded.exit_code == 0, offloaded.output);
    CHECK(offloaded.output.find("took memory as planned") != std::string::npos);
    CHECK(losses_and_norms(w.scratch / "offloaded") == losses_and_norms(w.scratch / "plain"));
  }
}

}  // namespace llmtrain::test
