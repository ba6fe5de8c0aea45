// checkpoint.local on fast storage that fails, or is cleared, while a run saves there.
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/checkpoint/store.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

constexpr int kAll = 160;

Overrides saving(const Overrides& saves) {
  Overrides all{fmt::format("training.max_steps={}", kAll), "eval.interval=null",
                "metrics.interval=1"};
  all.insert(all.end(), saves.begin(), saves.end());
  return all;
}

/// Clears `fast` once a run has saved step 3 there.
std::jthread clear_behind_step_3(const fs::path& fast, const fs::path& aside) {
  return std::jthread([=](const std::stop_token& stop) {
    const std::string step = checkpoint::step_directory_name(3);
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      if (!fs::exists(fast)) continue;
      for (const auto& entry : fs::directory_iterator(fast)) {
        if (fs::exists(entry.path() / step)) return fs::rename(fast, aside);
      }
    }
  });
}

/// The steps that `output` calls saved durably, in their order.
std::vector<int> saved_durably(std::string_view output) {
  constexpr std::string_view kSaved = "saved run/checkpoints/step-";
  std::vector<int> steps;
  for (std::size_t at = output.find(kSaved); at < output.size(); at = output.find(kSaved, at + 1)) {
    steps.push_back(std::stoi(std::string(output.substr(at + kSaved.size(), 8))));
  }
  return steps;
}

}  // namespace

TEST_CASE("local: fast storage that is cleared under a run costs it that storage alone") {
  const Workspace here(kTinyRecipe);
  int durable_interval = 12;
  std::string setting = "checkpoint.interval=12";
  SUBCASE("durable saves come as before") {}
  SUBCASE("where the recipe has none, they come instead of local ones") {
    durable_interval = 3;
    setting = "checkpoint.interval=null";
  }
  const std::jthread cleaner = clear_behind_step_3(here.path / "fast", here.path / "aside");
  const auto result =
      here.run(saving({setting, "checkpoint.local={directory: fast, interval: 3}"}));
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  const std::size_t lost =
      result.output.find(". The run goes on, and saves in run/checkpoints alone");
  REQUIRE(lost < result.output.size());
  CHECK(result.output.find("saved fast/", lost) > result.output.size());
  // The step of which the local save has failed, which is the next of its steps behind the last
  // that was saved, and then those that are due.
  const std::size_t last = result.output.rfind("/step-", lost);
  int failed = 3 + (last < lost ? std::stoi(result.output.substr(last + 6, 8)) : 0);
  if (failed % 12 == 0 && durable_interval == 12) failed += 3;
  const std::vector<int> saved = saved_durably(std::string_view(result.output).substr(lost));
  REQUIRE(saved.size() >= 2);
  CHECK(saved[0] == failed);
  CHECK(saved[1] == (saved[0] / durable_interval + 1) * durable_interval);
  CHECK(saved.back() == kAll);
  const Workspace plain(kTinyRecipe);
  run_well(plain, saving({"checkpoint.interval=40"}));
  CHECK(fingerprint(here.path, kAll) == fingerprint(plain.path, kAll));
}

}  // namespace llmtrain
