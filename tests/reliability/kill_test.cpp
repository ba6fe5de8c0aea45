// A process that dies at any point of a save: T1, T2 of docs/reliability.md.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/require.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace {

// A save over an earlier one of the same step, which only a run does that goes on from an older
// one, is left to unit_checkpoint_test.
std::vector<std::string> points() {
  std::vector<std::string> names;
  for (const std::string_view point : checkpoint::kFailpoints) {
    if (!point.starts_with("replace.")) names.emplace_back(point);
  }
  return names;
}

std::string kill_at_point(const Layout& layout, const std::string& point, const std::string& victim,
                          std::int64_t before, int save) {
  const Job job(layout, &prepared_job(layout, before));
  const TempDir pids;
  const Environment environment{{"FAILPOINT", point},
                                {"FAILPOINT_SAVE", std::to_string(save)},
                                {"FAILPOINT_VICTIM", victim},
                                {"FAILPOINT_PIDS", pids.path().string()}};
  const ProcessResult killed = job.run(environment, {}, LLMTRAIN_FAILPOINTS);
  if (killed.timed_out) return "hangs: " + killed.output;
  // By the launcher; a start that fails is no kill.
  if (killed.output.find("exited on signal 9") == std::string::npos) {
    return "was not killed: " + killed.output;
  }
  return check_recovery(job, layout, killed.output, before);
}

}  // namespace

TEST_CASE("T1 a rank killed at any named point of a save") {
  Journal journal("T1", 41);
  int cases = 0;
  for (const bool async : {false, true}) {
    for (const bool first : {true, false}) {
      for (const char* victim : {"0", "1", "2", "all"}) {
        for (const std::string& point : points()) {
          const Layout layout{.ranks = 3, .async = async};
          // Retention deletes nothing before the third save.
          const bool deletes = point.starts_with("verify.") || point.starts_with("retention.");
          const std::int64_t before = first ? (deletes ? 4 : 0) : 2;
          journal.run(fmt::format("{}, {} save, rank {} at {}", layout.name(),
                                  first ? "first" : "later", victim, point),
                      [&] { return kill_at_point(layout, point, victim, before, first ? 1 : 2); });
          ++cases;
        }
      }
    }
  }
  // The fifth save of all is the third on other storage.
  for (const bool async : {false, true}) {
    for (const char* victim : {"0", "1", "2", "all"}) {
      for (const std::string& point : points()) {
        const Layout layout{.ranks = 3, .async = async, .local = true};
        journal.run(fmt::format("{}, rank {} at {}", layout.name(), victim, point),
                    [&] { return kill_at_point(layout, point, victim, 0, 5); });
        ++cases;
      }
    }
  }
  CHECK(cases == 552);
  journal.check();
}

TEST_CASE("T2 killed before the n-th call that changes files, for every n until a run survives") {
  Journal journal("T2", 89);
  for (const Layout& layout :
       {Layout{1, false}, {1, true}, {2, false}, {2, true}, {.ranks = 1, .local = true}}) {
    for (int victim = 0; victim < layout.ranks; ++victim) {
      for (const char* how : {"kill", "tear"}) {
        const Environment hit{{"IO_FAULT_CALLS", std::string(how) == "tear" ? "write" : ""},
                              {"IO_FAULT_DO", how}};
        // Whatever threads do: one more than are made.
        const int calls = count_calls(layout, victim, hit) + 8;
        for (int n = 1; n <= calls; ++n) {
          journal.run(fmt::format("{}, {} rank {} at call {}", layout.name(), how, victim, n),
                      [&]() -> std::string {
                        const Job job(layout, &prepared_job(layout, 2));
                        const ProcessResult result = job.run(io_fault(victim, n, hit));
                        if (result.timed_out) return "hangs: " + result.output;
                        // Threads may change the last ones, and the first half is made always.
                        if (n <= calls / 2 && result.exit_code == 0) return "was not killed";
                        if (n == calls && result.exit_code != 0) return "there are more calls";
                        return check_recovery(job, layout, result.output, 2);
                      });
        }
      }
    }
  }
  journal.check();
}

}  // namespace llmtrain::test
