#pragma once
/// Runs with something in a file (offload), beside those with all of it in memory.

#include <csignal>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tests/e2e/workspace.hpp"

namespace llmtrain {

using Overrides = std::vector<std::string>;
using Json = nlohmann::json;

inline Overrides joined(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// What `llmtrain plan recipe.yaml --json` says there.
inline Json plan_of(const Workspace& here, const Overrides& overrides) {
  const auto result = here.call(joined({"plan", "recipe.yaml", "--json"}, overrides));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  return Json::parse(result.output.substr(result.output.find('{')));
}

/// Tensors, state and metrics, without those of memory: which is what differs.
inline std::string outcome(const std::filesystem::path& where, std::uint64_t step = 6) {
  static const std::regex kMemory(R"(,"memory/[a-z_]+":[0-9]+)");
  return std::regex_replace(fingerprint(where, step), kMemory, "");
}

/// Of a run on an emulated GPU.
inline Overrides on_gpu(const Overrides& settings) {
  return joined({"run.device=cuda", "eval.interval=null", "checkpoint.interval=6"}, settings);
}

/// That it has the bits that it has without `offload`, takes memory as planned, and says so.
inline void check_same_on_gpu(const Overrides& settings, const Overrides& offload,
                              const std::vector<std::string>& says) {
  CAPTURE(fmt::format("{} {}", fmt::join(settings, " "), fmt::join(offload, " ")));
  const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
  const auto expected = plain.run(on_gpu(settings));
  REQUIRE_MESSAGE(expected.exit_code == 0, expected.output);
  const auto result = offloaded.run(on_gpu(joined(settings, offload)));
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  CHECK(outcome(offloaded.path, 6) == outcome(plain.path, 6));
  CHECK(holds(result.output, {"6 steps took memory as planned, allocation by allocation"}));
  CHECK(holds(result.output, says));
}

/// Of all steps that metrics tell of.
inline std::vector<double> losses(const Workspace& of) {
  std::vector<double> all;
  for (const auto& record : of.metrics()) all.push_back(record.number("train/loss").value_or(-1));
  return all;
}

/// What a run has before it is stopped, and what it goes on with.
struct Way {
  Overrides before, after;
};

/// That runs on an emulated GPU which are stopped behind the second of 12 steps, and go on another
/// way, end as one without any of that.
inline void check_goes_on(const Overrides& form, const std::vector<Way>& ways) {
  const Overrides settings = joined(form, {"training.max_steps=12", "checkpoint.interval=2"});
  const Workspace whole(kTinyRecipe);
  const auto plain = whole.run(on_gpu(settings));
  REQUIRE_MESSAGE(plain.exit_code == 0, plain.output);
  const std::string expected = outcome(whole.path, 12);
  for (const Way& way : ways) {
    const Workspace here(kTinyRecipe);
    const auto stopped = here.run(on_gpu(joined(settings, way.before)),
                                  {.signal = SIGTERM, .signal_after = " 2/12 "});
    REQUIRE_MESSAGE(stopped.exit_code == 75, stopped.output);
    const auto rest = here.run(on_gpu(joined(settings, way.after)));
    REQUIRE_MESSAGE(rest.exit_code == 0, rest.output);
    CHECK(holds(rest.output, {"resumed from step"}));
    CHECK(outcome(here.path, 12) == expected);
  }
}

/// That a GPU's run which a bad step takes back has the losses that it has without `offload`.
inline void check_way_back_in_place(const Overrides& offload) {
  const Overrides spikes = on_gpu({"optimizer.lr=1", "checkpoint.interval=2",
                                   "resilience={on_loss_spike: rollback, loss_spike_window: 1, "
                                   "loss_spike_factor: 1.001, max_rollbacks: 2}"});
  const Workspace plain(kTinyRecipe), offloaded(kTinyRecipe);
  const auto expected = plain.run(spikes);
  const auto result = offloaded.run(joined(spikes, offload));
  CHECK(result.exit_code == expected.exit_code);
  REQUIRE(expected.output.find("went back to step") != std::string::npos);
  CHECK(result.output.find("went back to step") != std::string::npos);
  CHECK(losses(plain) == losses(offloaded));
}

}  // namespace llmtrain
