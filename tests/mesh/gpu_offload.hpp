#pragma once
/// Two ranks on an emulated GPU with something in the memory of its host (offload), beside two
/// whose GPU has all of it.

#include <csignal>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

/// That both have the same bits, the offloaded ones take memory as planned and say `says`, and
/// what they saved when they were stopped goes on without. `eval`: of the recipe.
inline void check_same_on_gpu(const std::vector<std::string>& settings, const std::string& eval,
                              const std::string& offload, std::string_view says) {
  CAPTURE(fmt::format("{}", fmt::join(settings, " ")));
  const Workshop w;
  const auto run = [&](std::string_view name, bool is_offloaded, ProcessEvents events = {}) {
    std::vector<std::string> overrides{"run.device=cuda", "run.memory_limit=256 MiB",
                                       "training.max_steps=8", eval};
    overrides.insert(overrides.end(), settings.begin(), settings.end());
    overrides.push_back(fmt::format("run.output_dir={}", name));
    if (is_offloaded) overrides.push_back(offload);
    events.limit_seconds = 180;
    return w.run(2, overrides, events);
  };
  const ProcessResult plain = run("plain", false);
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
  const ProcessResult offloaded = run("offloaded", true);
  REQUIRE_MESSAGE(offloaded.exit_code == 0, offloaded.output);
  CHECK(offloaded.output.find("took memory as planned") != std::string::npos);
  CHECK(offloaded.output.find(says) != std::string::npos);
  CHECK(losses_and_norms(w.scratch / "offloaded") == losses_and_norms(w.scratch / "plain"));
  const ProcessEvents stop{.signal = SIGTERM, .signal_after = "step-00000004"};
  REQUIRE(run("both", true, stop).exit_code != 0);
  const ProcessResult rest = run("both", false);
  REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
  CHECK(losses_and_norms(w.scratch / "both") == losses_and_norms(w.scratch / "plain"));
}

}  // namespace llmtrain::test
