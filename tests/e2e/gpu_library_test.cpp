// Who asks for no GPU loads nothing that belongs to one.
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "tests/e2e/emulated_gpu.hpp"

namespace llmtrain {

TEST_CASE("a run on the CPU opens no library of GPUs, where there is one" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workspace here(kTinyRecipe);
  const Plugin plugin(LLMTRAIN_EMULATED_GPU);
  ::setenv("LD_DEBUG", "files", 1);  // the loader tells what it opens
  const auto on_cpu = here.run({"run.device=cpu"});
  const auto on_gpu = here.run({"run.device=cuda", "run.output_dir=gpu"});
  ::unsetenv("LD_DEBUG");

  CHECK(on_cpu.exit_code == 0);
  CHECK(on_cpu.output.find("libllmtrain_cuda") == std::string::npos);
  CHECK(on_gpu.exit_code == 0);
  CHECK(on_gpu.output.find("libllmtrain_cuda") != std::string::npos);
}

}  // namespace llmtrain
