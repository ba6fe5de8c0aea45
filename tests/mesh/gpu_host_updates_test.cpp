// `llmtrain run` under mpirun on an emulated GPU whose host updates (offload.optimizer: host).
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/mesh/gpu_offload.hpp"
#include "tests/support/variable.hpp"

namespace llmtrain::test {

TEST_CASE("ranks on a GPU have the bits that they have without when their hosts update" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  using Overrides = std::vector<std::string>;
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  const std::vector<Overrides> all{
      {"parallelism.zero=1", "precision.compute=bf16"},
      {"parallelism.zero=2", "precision={compute: bf16, master: bf16+remainder}"},
      {"parallelism.zero=3", "precision.compute=bf16", "resilience.checksum_every=1"},
      {"parallelism.zero=0", "precision.compute=bf16", "optimizer.name=adafactor",
       "resilience.checksum_every=1"},
      {"parallelism.tp=2", "precision.compute=bf16", "optimizer.name=lion"},
      {"parallelism.pp=2", "precision.compute=bf16"}};
  for (const Overrides& settings : all) {
    if (is_quick() && settings.front() != "parallelism.zero=3") continue;
    check_same_on_gpu(settings, "eval.interval=null",
                      "offload={optimizer: host, master: host, buffer: 160KiB}",
                      "updates on the host took");
  }
}

}  // namespace llmtrain::test
