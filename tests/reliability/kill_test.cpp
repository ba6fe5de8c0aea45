// A process that dies at any point of a save: T1, T2 of docs/reliability.md.
#include <algorithm>
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/require.hpp"
#include "lib/checkpoint/pending_save.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"
#include "tests/support/variable.hpp"

namespace llmtrain::test {

namespace {

// Between its signals to the ranks that are left when one was killed, the launcher waits a second
// otherwise. What those ranks do in it is T7's matter.
struct ImpatientLauncher {
  Variable sigkill_timeout{"OMPI_MCA_odls_base_sigkill_timeout", "0"};
};

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
  const ImpatientLauncher launcher;
  Journal journal("T1", 97);
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

namespace {

/// Runs of which one rank dies at its n-th call.
struct CallKills {
  Layout layout;
  int victim = 0;
  std::string how;  // before any call, or in the middle of a write
  Environment where = {};
  std::int64_t before = 2;  // steps that were saved
  bool by_time = false;     // some calls come every second, so a run that takes longer makes more
  bool falls_back = false;  // from a newer checkpoint that is damaged

  std::string name() const {
    return fmt::format("{}, from {}, {} rank {}", layout.name(), before, how, victim);
  }
  const Job& start() const {
    return falls_back ? damaged_job(layout) : prepared_job(layout, before);
  }
  Environment environment() const {
    Environment all = where;
    all.insert(all.end(), {{"IO_FAULT_CALLS", how == "tear" ? "write" : ""}, {"IO_FAULT_DO", how}});
    return all;
  }

  struct Outcome {
    bool killed = false;
    std::string wrong;
  };
  Outcome kill_at(int n) const {
    const Job job(layout, &start());
    const ProcessResult result = job.run(io_fault(victim, n, environment()));
    if (result.timed_out) return {false, "hangs: " + result.output};
    const bool killed = result.exit_code == -SIGKILL ||
                        result.output.find("exited on signal 9") != std::string::npos;
    if (!killed && result.exit_code != 0) return {false, "fails: " + result.output};
    return {killed, check_recovery(job, layout, result.output, before, falls_back)};
  }
  std::string must_kill_at(int n) const {
    const Outcome outcome = kill_at(n);
    if (outcome.killed || !outcome.wrong.empty()) return outcome.wrong;
    return by_time ? std::string(Journal::kMissed) : "was not killed";
  }
  // Threads make a call more or less than those that were counted.
  std::string until_one_survives(int first) const {
    constexpr int kMore = 12;
    for (int n = first; n < first + kMore; ++n) {
      const Outcome outcome = kill_at(n);
      if (!outcome.killed || !outcome.wrong.empty()) return outcome.wrong;
    }
    return "none survives";
  }
};

/// Of as many calls as a run makes the last few, `unsure`, are not made by every run.
void try_all(Journal& journal, const CallKills& kills, int unsure) {
  const int calls = count_calls(kills.layout, kills.victim, kills.environment(), kills.start());
  const int sure = calls - std::min(unsure, calls / 4);
  for (int n = 1; n <= sure; ++n) {
    journal.run(fmt::format("{} at call {}", kills.name(), n),
                [&] { return kills.must_kill_at(n); });
  }
  journal.run(fmt::format("{} after {}", kills.name(), sure),
              [&] { return kills.until_one_survives(sure + 1); });
}

}  // namespace

TEST_CASE("T2 killed before the n-th call that changes files, for every n until a run survives") {
  const ImpatientLauncher launcher;
  Journal journal("T2", 227);
  for (const Layout& layout :
       {Layout{1, false}, {1, true}, {2, false}, {2, true}, {.ranks = 1, .local = true}}) {
    for (int victim = 0; victim < layout.ranks; ++victim) {
      for (const char* how : {"kill", "tear"}) {
        try_all(journal, {layout, victim, how}, layout.async ? 6 : 0);
      }
    }
  }
  journal.check();
}

TEST_CASE("T2 the same of a start that finds its newest checkpoint damaged") {
  const ImpatientLauncher launcher;
  Journal journal("T2-back", 311);
  for (const Layout& layout : {Layout{1, false}, {2, true}}) {
    for (int victim = 0; victim < layout.ranks; ++victim) {
      for (const char* how : {"kill", "tear"}) {
        CallKills kills{layout, victim, how};
        kills.falls_back = true;
        try_all(journal, kills, layout.async ? 6 : 0);
      }
    }
  }
  journal.check();
}

TEST_CASE("T2 the same of the calls to metrics, status, samples and logs, also of a first start") {
  const ImpatientLauncher launcher;
  Journal journal("T2-files", 229);
  for (const Layout& layout : {Layout{1, false}, {2, false}}) {
    for (const std::int64_t before : {0, 2}) {
      for (int victim = 0; victim < layout.ranks; ++victim) {
        for (const char* how : {"kill", "tear"}) {
          try_all(journal, {layout, victim, how, kFilesBeside, before, true}, 6);
        }
      }
    }
  }
  journal.check();
}

}  // namespace llmtrain::test
