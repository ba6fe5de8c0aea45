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

TEST_CASE("keys for GPUs are said to do nothing on a CPU, and on a GPU they are not" *
          doctest::skip(!std::filesystem::exists(LLMTRAIN_EMULATED_GPU))) {
  const Workspace here(kTinyRecipe);
  const Plugin plugin(LLMTRAIN_EMULATED_GPU);
  const std::string keys =
      "run={device: cpu, output_dir: run, seed: 5, threads: 1, cuda_graphs: off, attention: own, "
      "library_workspace: 1MiB}";
  const std::string line =
      "for GPUs alone, without effect on this CPU: run.library_workspace, run.attention, "
      "run.cuda_graphs";

  const auto said = here.run({keys});
  INFO(said.output);
  CHECK(said.exit_code == 0);
  CHECK(holds(said.output, {line}));

  CHECK(here.run({"run.output_dir=plain"}).output.find("for GPUs alone") == std::string::npos);
  const auto on_gpu = here.run({"run.device=cuda", "run.cuda_graphs=off", "run.output_dir=gpu"});
  CHECK(on_gpu.exit_code == 0);
  CHECK(on_gpu.output.find("for GPUs alone") == std::string::npos);
}

}  // namespace llmtrain
