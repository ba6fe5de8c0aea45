// Fast storage (checkpoint.local) that fails for good, and runs that have to go back, or begin,
// without it.
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/require.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace {

constexpr const char* kGoesOn = "The run goes on, and saves in run/checkpoints alone";

bool says(const ProcessResult& result, std::string_view text) {
  return result.output.find(text) < result.output.size();
}

Environment with(Environment environment, const Environment& more) {
  environment.insert(environment.end(), more.begin(), more.end());
  return environment;
}

/// What one rank computes is not finite in the fifth step, once.
const Environment kBadStep{{"NUMBER_SITE", "activation"},
                           {"NUMBER_VALUE", "nan"},
                           {"NUMBER_RANK", "0"},
                           {"NUMBER_STEP", "5"}};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int ranks : {1, 2}) {
    for (const bool async : {false, true}) {
      all.push_back({.ranks = ranks, .async = async, .local = true});
    }
  }
  return all;
}

/// Of a run that saves every step durably, and goes back from the fifth to the fourth.
const std::string& expected_weights(const Layout& layout) {
  static std::map<int, std::string> known;
  std::string& expected = known[layout.ranks];
  if (!expected.empty()) return expected;
  const Layout durable{.ranks = layout.ranks};
  const Job job(durable, &prepared_job(durable, 0));
  const ProcessResult result =
      job.run(kBadStep, {"checkpoint.interval=1", "resilience.on_non_finite=rollback"},
              LLMTRAIN_FAILPOINTS);
  require(result.exit_code == 0 && says(result, "went back to step 4"), "{}", result.output);
  return expected = weights_of(job, Layout::kSteps);
}

/// What does not hold of a run that goes on without fast storage, and goes back.
std::string check_way_back(const Job& job, const Layout& layout, const ProcessResult& result,
                           const std::vector<std::string>& parts) {
  if (result.exit_code != 0)
    return fmt::format("exit code {}: {}", result.exit_code, result.output);
  for (const std::string& part : parts) {
    if (!says(result, part)) return fmt::format("'{}' not said: {}", part, result.output);
  }
  if (!says(result, kGoesOn)) return "not told of: " + result.output;
  if (!says(result, "went back to step 4")) return "goes back elsewhere: " + result.output;
  return weights_of(job, Layout::kSteps) == expected_weights(layout) ? "" : "ends otherwise";
}

}  // namespace

TEST_CASE("T5 a way back leads to the newest durable checkpoint behind fast storage that fails") {
  Journal journal("T5-back-local", 5);
  // What it has saved there before, step 2, can be read.
  const Environment full = io_fault(0, 0,
                                    {{"IO_FAULT_UNDER", "/step-00000003.tmp-"},
                                     {"IO_FAULT_APART", "run/checkpoints/step-"},
                                     {"IO_FAULT_CALLS", "mkdir"},
                                     {"IO_FAULT_DO", "ENOSPC"}});
  for (const Layout& layout : layouts()) {
    for (const std::string interval : {"checkpoint.interval=null", "checkpoint.interval=4"}) {
      journal.run(fmt::format("{}, {}", layout.name(), interval), [&] {
        const Job job(layout, &prepared_job(layout, 0));
        const ProcessResult result = job.run(with(full, kBadStep), {interval}, LLMTRAIN_FAILPOINTS);
        return check_way_back(job, layout, result, {"saved run/checkpoints/step-00000003"});
      });
    }
  }
  journal.check();
}

TEST_CASE("T5 a run that has durable checkpoints begins and goes back without fast storage") {
  Journal journal("T5-dead-local", 5);
  for (const Layout& layout : layouts()) {
    for (const std::string calls : {"", "look", "open,mkdir,write,rename,unlink,link"}) {
      journal.run(fmt::format("{}, no {}", layout.name(), calls.empty() ? "changes" : calls), [&] {
        const Environment dead = io_fault(0, 0,
                                          {{"IO_FAULT_UNDER", "/fast/run/checkpoints"},
                                           {"IO_FAULT_CALLS", calls},
                                           {"IO_FAULT_DO", "EIO"},
                                           {"IO_FAULT_RANK", ""}});
        const Job job(layout, &prepared_job(layout, 2));
        const ProcessResult result = job.run(with(dead, kBadStep), {}, LLMTRAIN_FAILPOINTS);
        return check_way_back(job, layout, result, {"Input/output error", "resumed from step 2"});
      });
    }
  }
  journal.check();
}

TEST_CASE("T5 states that cannot be read for a save are not put down to fast storage") {
  Journal journal("T5-source-local", 9);
  const Overrides offload{"offload={optimizer: nvme, buffer: 1MiB, path: away}"};
  const Environment reads{{"IO_FAULT_UNDER", "/away/"}, {"IO_FAULT_CALLS", "read"}};
  constexpr int kTried = 8;
  for (const Layout& layout : layouts()) {
    const int victim = layout.ranks - 1;
    int calls = 0;
    for (int n = 0; n < kTried; ++n) {
      journal.run(
          fmt::format("{}, rank {} at read {}/{}", layout.name(), victim, n, kTried),
          [&]() -> std::string {
            if (calls == 0) {
              calls = count_calls(layout, victim, reads, prepared_job(layout, 0), offload);
            }
            const Job job(layout, &prepared_job(layout, 0));
            const ProcessResult result = job.run(
                with(io_fault(victim, 1 + n * calls / kTried, reads), {{"IO_FAULT_DO", "EIO"}}),
                offload);
            if (result.timed_out) return "hangs: " + result.output;
            if (says(result, kGoesOn)) return "put down to fast storage: " + result.output;
            if (result.exit_code == 0) return "";
            const bool is_said = says(result, "Input/output error");
            return result.exit_code == 7 && is_said
                       ? ""
                       : fmt::format("exit code {}: {}", result.exit_code, result.output);
          });
    }
  }
  journal.check();
}

}  // namespace llmtrain::test
