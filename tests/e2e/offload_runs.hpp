#pragma once
/// Runs with something in a file (offload), beside those with all of it in memory.

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

}  // namespace llmtrain
