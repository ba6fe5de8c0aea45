// `llmtrain run` under mpirun on an emulated GPU whose host updates (offload.optimizer: host).
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/workshop.hpp"
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
    CAPTURE(fmt::format("{}", fmt::join(settings, " ")));
    const Workshop w;
    const auto run = [&](std::string_view name, bool offload, ProcessEvents events = {}) {
      Overrides overrides = settings;
      overrides.insert(overrides.end(),
                       {"run.device=cuda", "run.memory_limit=256 MiB", "training.max_steps=8",
                        "eval.interval=null", fmt::format("run.output_dir={}", name)});
      if (offload) {
        overrides.push_back("offload={optimizer: host, master: host, buffer: 160KiB}");
      }
      events.limit_seconds = 120;
      return w.run(2, overrides, events);
    };
    const ProcessResult plain = run("plain", false);
    REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
    const ProcessResult offloaded = run("offloaded", true);
    REQUIRE_MESSAGE(offloaded.exit_code == 0, offloaded.output);
    CHECK(offloaded.output.find("took memory as planned") != std::string::npos);
    CHECK(offloaded.output.find("updates on the host took") != std::string::npos);
    CHECK(losses_and_norms(w.scratch / "offloaded") == losses_and_norms(w.scratch / "plain"));
    const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
    REQUIRE(run("both", true, stop).exit_code != 0);
    const ProcessResult rest = run("both", false);
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(losses_and_norms(w.scratch / "both") == losses_and_norms(w.scratch / "plain"));
  }
}

}  // namespace llmtrain::test
