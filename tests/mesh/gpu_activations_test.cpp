// `llmtrain run` under mpirun on an emulated GPU whose host has activations (offload.activations),
// in its memory or in files.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/workshop.hpp"
#include "tests/support/variable.hpp"

namespace llmtrain::test {

TEST_CASE("ranks on a GPU have the bits that they have without when activations go to their hosts" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  using Overrides = std::vector<std::string>;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const std::vector<Overrides> all{
      {"parallelism.zero=3", "training.micro_batch_size=2"},
      {"parallelism.zero=2", "precision.compute=bf16", "activation_checkpoint.mode=full"},
      {"parallelism.tp=2", "parallelism.tp_sequence_parallel=true", "precision.compute=bf16"},
      {"parallelism.sp=2", "parallelism.sp_algo=ring"},
      {"parallelism={dp: 2, ep: 2}",
       "model={architecture: qwen3_moe, vocab_size: 300, hidden_size: 16, num_hidden_layers: 3, "
       "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 4, "
       "num_experts_per_tok: 2, max_position_embeddings: 64}"},
      {"parallelism.pp=2", "parallelism.pp_schedule=1f1b", "model.num_hidden_layers=5"},
      {"parallelism.pp=2", "parallelism.pp_schedule=zb_h1", "model.num_hidden_layers=4"},
      {"parallelism.pp=2", "parallelism.pp_schedule=dualpipev", "model.num_hidden_layers=4"},
      {"parallelism.pp=2", "parallelism.pp_schedule=interleaved_1f1b",
       "parallelism.pp_stages_per_rank=2", "model.num_hidden_layers=4",
       "activation_checkpoint.mode=full"}};
  for (const Overrides& settings : all) {
    if (is_quick() && settings.front() != "parallelism.zero=3" &&
        settings.back() != "model.num_hidden_layers=5") {
      continue;
    }
    CAPTURE(fmt::format("{}", fmt::join(settings, " ")));
    const Workshop w;
    const auto run = [&](std::string_view name, const Overrides& offload) {
      Overrides overrides{"precision.compute=fp32"};
      overrides.insert(overrides.end(), settings.begin(), settings.end());
      overrides.insert(overrides.end(),
                       {"run.device=cuda", "run.memory_limit=256 MiB", "training.max_steps=4",
                        "eval.interval=null", fmt::format("run.output_dir={}", name)});
      overrides.insert(overrides.end(), offload.begin(), offload.end());
      return w.run(2, overrides, {.limit_seconds = 180});
    };
    const ProcessResult plain = run("plain", {});
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
    const auto check_same = [&](std::string_view name, Overrides offload, std::string_view says) {
      offload.emplace_back(
          "offload.activations=[block, attention, linear, norm, activation, experts, dropout]");
      const ProcessResult offloaded = run(name, offload);
      REQUIRE_MESSAGE(offloaded.exit_code == 0, offloaded.output);
      CHECK(offloaded.output.find("took memory as planned") != std::string::npos);
      CHECK(offloaded.output.find(says) != std::string::npos);
      CHECK(losses_and_norms(w.scratch.path() / name) == losses_and_norms(w.scratch / "plain"));
    };
    check_same("on_host", {}, "activations: in the host's memory");
    if (is_quick() && settings.front() == "parallelism.zero=3") continue;
    check_same("in_files", {"offload.activation_place=nvme", "offload.activation_buffer=1MiB"},
               "activations: in a file of the host");
  }
}

}  // namespace llmtrain::test
