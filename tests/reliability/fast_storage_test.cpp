// Fast storage (checkpoint.local) that fails for good, and runs that have to go back, or begin,
// without it.
#include <filesystem>
#include <map>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

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

namespace {

/// Two steps durable and two more on fast storage: steps 3 and 4, and a file of somebody else's.
class Interrupted {
 public:
  explicit Interrupted(const Layout& layout) : job(layout, &prepared_job(layout, 2)) {
    const ProcessResult result = kill_at_save(3, {});
    require(result.exit_code != 0 && says(result, "/step-00000004 ("), "{}", result.output);
    write_file_atomic(job.directory() / "fast" / "file", "of somebody else");
  }
  /// The manifest of the n-th save of a start is not written any more.
  ProcessResult kill_at_save(int n, const Environment& environment,
                             const Overrides& more = {}) const {
    const TempDir pids;
    Overrides settings{"checkpoint.interval=null"};
    settings.insert(settings.end(), more.begin(), more.end());
    return job.run(with(environment, {{"FAILPOINT", "manifest.create"},
                                      {"FAILPOINT_SAVE", std::to_string(n)},
                                      {"FAILPOINT_VICTIM", "0"},
                                      {"FAILPOINT_PIDS", pids.path().string()}}),
                   settings, LLMTRAIN_FAILPOINTS);
  }
  bool has_foreign_file() const { return fs::exists(job.directory() / "fast" / "file"); }

  Job job;
};

Environment unreadable() {
  return io_fault(0, 0,
                  {{"IO_FAULT_UNDER", "/fast/run/checkpoints"},
                   {"IO_FAULT_CALLS", "read"},
                   {"IO_FAULT_DO", "EIO"},
                   {"IO_FAULT_RANK", ""}});
}

}  // namespace

TEST_CASE("T5 a look at fast storage that fails takes nothing from whoever else is there") {
  Journal journal("T5-looks-local", 40);
  for (const Layout& layout : {Layout{.ranks = 1, .local = true}, {.ranks = 2, .local = true}}) {
    for (const char* under : {"/fast", "/local.json"}) {
      for (int n = 1; n <= (layout.ranks == 1 ? 24 : 12); ++n) {
        journal.run(fmt::format("{}, {} at {}", layout.name(), under, n), [&]() -> std::string {
          const Interrupted was(layout);
          const bool is_record = under[1] == 'l';
          const Environment hit = io_fault(0, n,
                                           {{"IO_FAULT_UNDER", under},
                                            {"IO_FAULT_CALLS", is_record ? "look,read" : "look"},
                                            {"IO_FAULT_DO", "EIO"}});
          const ProcessResult result = was.job.run(hit, {"checkpoint.interval=null"});
          if (!was.has_foreign_file()) return "gone: " + result.output;
          if (result.exit_code != 0 && result.exit_code != 7) {
            return fmt::format("exit code {}: {}", result.exit_code, result.output);
          }
          if (was.job.run({}, {"checkpoint.interval=null"}).exit_code != 0) return "ends badly";
          if (!was.has_foreign_file()) return "gone in the end";
          return was.job.fingerprint(Layout::kSteps) == expected_fingerprint(layout)
                     ? ""
                     : "ends with another state";
        });
      }
    }
  }
  journal.check();
}

TEST_CASE("T5 local checkpoints that could not be read are not met again by a run without them") {
  Journal journal("T5-unread-local", 3);
  for (const Layout& layout : layouts()) {
    journal.run(layout.name() + ", durable ones are there", [&]() -> std::string {
      const Interrupted was(layout);
      const ProcessResult without = was.kill_at_save(2, unreadable());
      if (!says(without, "resumed from step 2")) return "resumes elsewhere: " + without.output;
      const ProcessResult last = was.job.run({}, {"checkpoint.interval=null"});
      if (last.exit_code != 0) return "fails: " + last.output;
      if (!says(last, "resumed from step 3\n")) return "meets them again: " + last.output;
      return was.job.fingerprint(Layout::kSteps) == expected_fingerprint(layout) ? ""
                                                                                 : "ends otherwise";
    });
    journal.run(layout.name() + ", there are no others", [&]() -> std::string {
      const Interrupted was(layout);
      fs::remove_all(was.job.checkpoints() / "step-00000002");
      const ProcessResult unread = was.job.run(unreadable(), {"checkpoint.interval=null"});
      if (unread.exit_code != 7) return "begins: " + unread.output;
      if (!says(unread, "run again when the storage is well")) return "not said: " + unread.output;
      const ProcessResult last = was.job.run({}, {"checkpoint.interval=null"});
      return last.exit_code == 0 && says(last, "resumed from step 4, saved in ")
                 ? ""
                 : "lost: " + last.output;
    });
  }
  journal.check();
}

TEST_CASE("T5 what a way back finds on fast storage that failed is durable before it is left") {
  Journal journal("T5-left-local", 1);
  for (const int ranks : {1, 2}) {
    const Layout layout{.ranks = ranks, .async = true, .local = true};
    journal.run(layout.name(), [&]() -> std::string {
      const Job job(layout, &prepared_job(layout, 0));
      // Nobody has heard of the fourth save when the fifth step turns out to be bad.
      const Environment full = io_fault(0, 0,
                                        {{"IO_FAULT_UNDER", "/step-00000004.tmp-"},
                                         {"IO_FAULT_APART", "run/checkpoints/step-"},
                                         {"IO_FAULT_CALLS", "fsync"},
                                         {"IO_FAULT_DO", "ENOSPC"}});
      const ProcessResult result =
          job.run(with(full, kBadStep), {"checkpoint.interval=null"}, LLMTRAIN_FAILPOINTS);
      if (result.exit_code != 0) return "fails: " + result.output;
      if (!says(result, kGoesOn)) return "not told of: " + result.output;
      const std::size_t back = result.output.find("went back to step 3");
      if (back > result.output.size()) return std::string(Journal::kMissed);
      const std::size_t saved = result.output.find("saved run/checkpoints/step-00000003");
      return saved < result.output.size() ? "" : "not durable: " + result.output;
    });
  }
  journal.check();
}

}  // namespace llmtrain::test
