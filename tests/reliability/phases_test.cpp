// Ranks that fail and signals that come at any moment of a run: T7 and T8 of docs/reliability.md.
#include <algorithm>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/comm/tcp/socket.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/reliability/job.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace {

struct Moment {
  std::string phase, what;
  int rank = 0;
  std::int64_t step = 3;

  Environment environment(const TempDir& pids) const {
    return {{"PHASE_AT", phase},
            {"PHASE_STEP", std::to_string(step)},
            {"PHASE_RANK", std::to_string(rank)},
            {"PHASE_DO", what},
            {"PHASE_PIDS", pids.path().string()}};
  }
};

// Where a rank is first told to have failed: by ranks that wait, or by itself; of a process that is
// gone at once by the launcher, which ends the others before they can.
std::size_t first_complaint(const std::string& output, int rank) {
  const std::string self = rank == 0 ? "\nerror: " : fmt::format("[rank {}] error: ", rank);
  std::size_t first = std::string::npos;
  for (const std::string& text :
       {fmt::format("from rank {}: ", rank), fmt::format("rank {} with PID", rank),
        fmt::format("rank {} on {} ended", rank, tcp::host_name()),
        fmt::format("rank {}: unexpected: thrown by a test", rank),
        fmt::format("rank {} has given no sign of life", rank),
        self + "unexpected: thrown by a test", self + "nothing has gone on here"}) {
    first = std::min(first, output.find(text));
  }
  return first;
}

// Nobody is told to have failed before it.
bool names(const std::string& all, const Layout& layout, const Moment& at) {
  const std::string output = "\n" + all;
  const std::size_t first = first_complaint(output, at.rank);
  for (int rank = 0; rank < layout.ranks; ++rank) {
    if (rank != at.rank && first_complaint(output, rank) < first) return false;
  }
  return first != std::string::npos;
}

// What a rank says that it was doing then.
std::string doing(const Moment& at) {
  if (at.phase == "init") return "starting";
  if (at.phase == "data") return "preparing data";
  if (at.phase == "check") return "checking checkpoints";
  if (at.phase == "load") return "loading a checkpoint";
  if (at.phase == "save") return "saving, after step 4";
  if (at.phase == "evaluation" || at.phase == "samples") return "evaluating, after step 3";
  return "training, after step ";  // those who wait may be a step ahead
}

// A rank that is there and does nothing leaves word of where it was; one that cannot is waited for
// by others, who say what all were doing.
std::string check_place(const Job& job, const Layout& layout, const Moment& at,
                        const std::string& output) {
  if (at.what == "stop") {
    const std::string waiting = "this rank was " + doing(at);
    return output.find(waiting) < output.size() ? "" : "does not say '" + waiting + "': " + output;
  }
  if (at.what != "spin" && at.what != "read") return "";
  if (at.phase == "init") return "";  // before there is a log
  const auto log = job.directory() / "run" / "logs" / fmt::format("rank-{}.log", at.rank);
  const std::string text = read_file(log);
  const std::size_t still = text.find("nothing has gone on here");
  if (still == std::string::npos) return "no stacks: " + text;
  // A thread that writes beside the run is at what the run has left since.
  const bool named = text.find(" s (" + doing(at), still) != std::string::npos;
  if (!named && !(layout.async && at.phase == "save")) return "not in its place: " + text;
  return text.find("pass_phase") == std::string::npos ? "stacks without the place: " + text : "";
}

std::string fail_at(const Layout& layout, const Moment& at) {
  const std::int64_t before = at.phase == "data" || at.phase == "init" ? 0 : 2;
  const Job job(layout, &prepared_job(layout, before));
  const TempDir pids;
  // Nobody waits ten seconds longer than the time-out; the rest is for a start.
  constexpr double kLimitSeconds = 45;
  Overrides overrides{"resilience.hang_timeout=2s"};
  if (at.phase == "samples") overrides.emplace_back("eval.sample_prompts=[word]");
  const ProcessResult result =
      job.run(at.environment(pids), overrides, LLMTRAIN_FAILPOINTS, kLimitSeconds);
  if (result.timed_out) return "hangs: " + result.output;
  if (result.exit_code == 0) return "ends well: " + result.output;
  const bool stands_still = at.what == "spin" || at.what == "read" || at.what == "stop";
  if (stands_still && result.exit_code != 6) {
    return fmt::format("exit code {}: {}", result.exit_code, result.output);
  }
  if (at.what != "stop" && result.output.find("left behind") != std::string::npos) {
    return "does not end: " + result.output;
  }
  if (!names(result.output, layout, at)) return "does not name the rank first: " + result.output;
  if (std::string wrong = check_place(job, layout, at, result.output); !wrong.empty()) return wrong;
  return check_recovery(job, layout, result.output, before);
}

// Where no step is on its way yet, there is nothing to save.
bool is_before_steps(const Moment& at) {
  return at.phase == "data" || at.phase == "check" || at.phase == "load";
}

std::string signal_at(const Layout& layout, const Moment& at, bool twice) {
  const std::int64_t before = at.phase == "data" ? 0 : 2;
  const Job job(layout, &prepared_job(layout, before));
  const TempDir pids;
  const ProcessResult result = job.run(at.environment(pids), {}, LLMTRAIN_FAILPOINTS);
  if (result.timed_out) return "hangs: " + result.output;
  // A signal in the last part of a run is too late to stop it; a save beside so short a run may
  // begin to write there.
  const bool late = at.step == Layout::kSteps || (layout.async && at.phase == "save");
  const bool at_once = twice && at.what.find("INT") != std::string::npos;
  if (result.exit_code == 0 ? !late : result.exit_code != (at_once ? 130 : 75)) {
    return fmt::format("exit code {}: {}", result.exit_code, result.output);
  }
  // The state of the step in which it came is saved, and nothing is lost.
  const std::int64_t reported = job.reported();
  if (result.exit_code == 0 && reported != Layout::kSteps) return "not done: " + result.output;
  const std::int64_t saved = number_after(result.output, "saved run/checkpoints/step-");
  if (is_before_steps(at) && saved != -1) return "saved: " + result.output;
  if (!at_once && !is_before_steps(at) && saved < reported) {
    return fmt::format("{} was reported, and {} saved: {}", reported, saved, result.output);
  }
  return check_recovery(job, layout, result.output, before);
}

}  // namespace

namespace {

void try_all_failures(Journal& journal, bool tcp) {
  int cases = 0;
  for (const Layout& layout : {Layout{.ranks = 2, .tcp = tcp},
                               Layout{.ranks = 4, .parallelism = "{dp: 2, tp: 2}", .tcp = tcp}}) {
    for (const int rank : {0, layout.ranks - 1}) {
      for (const char* what : {"kill", "throw", "spin", "exit", "segv", "stop", "abort", "read"}) {
        for (const char* phase : {"init", "data", "check", "load", "forward", "backward", "reduce",
                                  "optimizer", "save", "evaluation", "end"}) {
          const Moment at{phase, what, rank};
          journal.run(fmt::format("{}, rank {}: {} in {}", layout.name(), rank, what, phase),
                      [&] { return fail_at(layout, at); });
          ++cases;
        }
      }
    }
  }
  CHECK(cases == 352);
  journal.check();
}

}  // namespace

TEST_CASE("T7 a rank that fails in any way at any moment: all end, and it is named") {
  Journal journal("T7", 107);
  try_all_failures(journal, false);
}

TEST_CASE("T7 the same of ranks that torchrun has started: each ends by itself") {
  Journal journal("T7-tcp", 117);
  try_all_failures(journal, true);
}

TEST_CASE("of ranks that wait for each other in a chain the one at its end is named, and first") {
  const Layout pipeline{.ranks = 4, .parallelism = "{pp: 4, pp_layers: [0, 1, 1, 0]}"};
  CHECK(fail_at(pipeline, {"backward", "spin", 1}) == "");
  CHECK(fail_at(pipeline, {"backward", "stop", 2}) == "");
}

TEST_CASE(
    "rank 0, stopped while others wait without limit, ends all where no launcher does, and at "
    "once") {
  // One after the other they would take ten seconds each.
  CHECK(fail_at(Layout{.ranks = 6, .tcp = true}, {"save", "stop", 0}) == "");
}

TEST_CASE("rank 0, stopped while the others wait without limit, is missed by one of them") {
  CHECK(fail_at(Layout{.ranks = 2}, {"data", "stop", 0}) == "");
  CHECK(fail_at(Layout{.ranks = 2}, {"samples", "stop", 0}) == "");
}

TEST_CASE("a rank that gets nowhere before the first step is missed, and named") {
  CHECK(fail_at(Layout{.ranks = 2}, {"data", "spin", 0}) == "");
}

TEST_CASE("a run that stands still as a whole ends itself: one rank, and two at once") {
  const std::pair<int, const char*> places[] = {{1, "evaluation"}, {2, "forward"}};
  for (const auto& [ranks, phase] : places) {
    CAPTURE(ranks);
    CAPTURE(phase);
    const Layout layout{.ranks = ranks};
    const Job job(layout, &prepared_job(layout, 2));
    const TempDir pids;
    Environment environment = Moment{phase, "read"}.environment(pids);
    environment.emplace_back("PHASE_RANK", "all");
    const ProcessResult result =
        job.run(environment, {"resilience.hang_timeout=1s"}, LLMTRAIN_FAILPOINTS, 45);
    INFO(result.output);
    CHECK_FALSE(result.timed_out);
    CHECK(result.exit_code == 6);
    CHECK(result.output.find("error: nothing has gone on here for ") < result.output.size());
    CHECK(check_recovery(job, layout, result.output, 2) == "");
  }
}

TEST_CASE("where a rank stands still is told with the step, right after a resume too") {
  CHECK(fail_at(Layout{.ranks = 2}, {"forward", "spin", 1}) == "");
}

TEST_CASE("a writer that stands still is missed by who waits for it, and its rank named") {
  // In place of the run: T7.
  CHECK(fail_at(Layout{.ranks = 2, .async = true}, {"save", "read", 0}) == "");
}

TEST_CASE("a step at which a signal stops the run is saved first, and reported then") {
  const Layout layout{.ranks = 2};
  const Job job(layout, &prepared_job(layout, 4));
  const TempDir pids, victims;
  Environment environment = Moment{"evaluation", "signal TERM 0"}.environment(pids);
  // The first one is that of step 6, whose save is due, too.
  environment.insert(environment.end(), {{"FAILPOINT", "save.begin"},
                                         {"FAILPOINT_SAVE", "1"},
                                         {"FAILPOINT_VICTIM", "0"},
                                         {"FAILPOINT_PIDS", victims.path().string()}});
  const ProcessResult result = job.run(environment, {}, LLMTRAIN_FAILPOINTS);
  INFO(result.output);
  CHECK(result.exit_code != 0);
  CHECK(job.reported() == 5);
  CHECK(check_recovery(job, layout, result.output, 4) == "");
}

TEST_CASE("T8 a signal at any moment: one save at one step, or none, and nothing is lost") {
  Journal journal("T8", 43);
  int cases = 0;
  const Layout in_place{.ranks = 2}, beside{.ranks = 2, .async = true};
  struct Place {
    const Layout& layout;
    const char* phase;
    std::int64_t step;
  };
  for (const Place& place : {Place{in_place, "data", 0},
                             {in_place, "check", 0},
                             {in_place, "load", 0},
                             {in_place, "forward", 3},
                             {in_place, "optimizer", 6},
                             {in_place, "save", 0},
                             {beside, "save", 0},
                             {beside, "backward", 5},
                             {in_place, "evaluation", 0}}) {
    for (const char* signal : {"TERM", "USR1", "USR2", "INT", "HUP"}) {
      for (const char* ranks : {"0", "1", "0 1", "0 0"}) {
        const bool twice = std::string(ranks) == "0 0";
        const Moment at{place.phase, fmt::format("signal {} {}", signal, ranks), 0, place.step};
        journal.run(
            fmt::format("{}, {} to {} in {}", place.layout.name(), signal, ranks, place.phase),
            [&] { return signal_at(place.layout, at, twice); });
        ++cases;
      }
    }
  }
  CHECK(cases == 180);
  journal.check();
}

}  // namespace llmtrain::test
