// `llmtrain run` under mpirun on an emulated GPU whose host has the parameters
// (offload.parameters).
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/mesh/gpu_offload.hpp"
#include "tests/support/variable.hpp"

namespace llmtrain::test {

namespace {

using Overrides = std::vector<std::string>;

constexpr const char* kExperts =
    "model={architecture: qwen3_moe, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2, "
    "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 24, num_experts: 4, "
    "num_experts_per_tok: 2, max_position_embeddings: 64}";

}  // namespace

TEST_CASE("ranks on a GPU have the bits that they have without when their hosts have parameters" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const std::vector<Overrides> all{
      {"parallelism.zero=3", "precision.compute=bf16", "resilience.checksum_every=1"},
      {"parallelism.zero=3", "parallelism.sp=2",
       "precision={compute: bf16, master: bf16+remainder}"},
      {"parallelism={dp: 2, dp_replicate: 2, zero: 1}", "precision.compute=bf16"},
      {"parallelism.tp=2", "precision.compute=bf16", "optimizer.name=lion"},
      {"parallelism.pp=2", "precision.compute=bf16"},
      {"parallelism={pp: 2, pp_schedule: zb_h1}", "precision.compute=bf16"},
      {"parallelism={dp: 2, ep: 2, zero: 3}", "precision.compute=bf16", kExperts}};
  for (const Overrides& settings : all) {
    if (is_quick() && &settings != &all.front()) continue;
    check_same_on_gpu(settings, "eval={interval: 4, max_samples: 8}",
                      "offload={optimizer: host, master: host, parameters: host, buffer: 160KiB}",
                      "of parameters came to the device");
  }
}

TEST_CASE("data ranks whose hosts would each have all parameters are refused") {
  const Workshop w;
  const ProcessResult result =
      w.run(2,
            {"parallelism.zero=2", "training.micro_batch_size=2", "run.device=cuda",
             "offload={optimizer: host, parameters: host}"},
            {.limit_seconds = 60});
  CHECK(result.exit_code != 0);
  CHECK_MESSAGE(result.output.find("each of 2 data ranks would have all parameters in its host's "
                                   "memory") != std::string::npos,
                result.output);
}

}  // namespace llmtrain::test
