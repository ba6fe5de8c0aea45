// `llmtrain run` under mpirun on an emulated GPU whose host updates what is in its ranks' files
// (offload.optimizer, master and parameters: nvme).
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/mesh/gpu_offload.hpp"
#include "tests/support/variable.hpp"

namespace llmtrain::test {

TEST_CASE("ranks on a GPU have the bits that they have without when their hosts have files" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Variable plugin("LLMTRAIN_CUDA_PLUGIN", LLMTRAIN_EMULATED_GPU);
  check_same_on_gpu({"parallelism.zero=3", "precision.compute=bf16", "resilience.checksum_every=1"},
                    "eval={interval: 4, max_samples: 8}",
                    "offload={optimizer: nvme, master: nvme, parameters: nvme, buffer: 160KiB}",
                    "of parameters came to the device");
  if (is_quick()) return;
  check_same_on_gpu({"parallelism.zero=1", "precision.compute=bf16"}, "eval.interval=null",
                    "offload={optimizer: nvme, master: nvme, buffer: 160KiB}", "; updates waited ");
}

}  // namespace llmtrain::test
