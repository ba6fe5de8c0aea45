// Calls of the disk that fail or take long: T5 of docs/reliability.md.
#include <algorithm>
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

TEST_CASE(
    "metrics are on the disk before the checkpoint that they lead to, and when a run is done") {
  const Job job({}, &prepared_job({}, 2));
  const std::string trace = (job.directory() / "trace").string();
  const Environment watched{{"IO_FAULT_UNDER", "/run/"}, {"IO_FAULT_TRACE", trace}};
  REQUIRE(job.run(io_fault(0, 0, watched)).exit_code == 0);
  int saves = 0, lines = 0;
  bool is_pending = false;
  for (const IoCall& call : read_trace(trace)) {
    if (call.path.ends_with("/metrics.jsonl")) {
      lines += call.call == "write" ? 1 : 0;
      if (call.call == "write" || call.call == "fsync") is_pending = call.call == "write";
    }
    if (call.call != "rename" || call.second.find("/checkpoints/step-") == std::string::npos) {
      continue;
    }
    ++saves;
    CHECK_FALSE(is_pending);
  }
  CHECK(saves == 2);
  CHECK(lines >= 4);
  CHECK_FALSE(is_pending);
}

TEST_CASE("signs of life and logs that cannot be written are said, and end nothing") {
  struct File {
    const char *name, *calls, *text;
  };
  for (const File& file : {File{"/logs/rank-1.alive", "open", "it is not missed"},
                           File{"/logs/rank-1.log", "open", "no log of this rank"},
                           File{"/logs/rank-1.log", "write", "lacks lines from here on"}}) {
    CAPTURE(file.text);
    const Layout layout{2};
    const Job job(layout, &prepared_job(layout, 2));
    const Environment hit{
        {"IO_FAULT_UNDER", file.name}, {"IO_FAULT_CALLS", file.calls}, {"IO_FAULT_DO", "ENOSPC"}};
    const ProcessResult result = job.run(io_fault(1, 0, hit));
    INFO(result.output);
    CHECK(result.exit_code == 0);
    const std::size_t at = result.output.find(file.text);
    REQUIRE(at < result.output.size());
    CHECK(result.output.find("No space left on device") < result.output.size());
    CHECK(result.output.find(file.text, at + 1) > result.output.size());  // once
    CHECK(check_recovery(job, layout, result.output, 2) == "");
  }
}

namespace {

struct FailingCall {
  const char* what;    // an errno, or how a write is cut
  const char* calls;   // of these; all without a name
  const char* reason;  // what is said of it; nothing of a call that is made again
  bool is_harmless() const { return *reason == '\0'; }
};

// Without the last of these nothing is lost and nothing is left: the end of a directory, of a file
// that was opened for its flock, or of metrics that are on the disk; the removal of a temporary
// file that is not there.
bool changes_nothing(const std::vector<IoCall>& calls) {
  const IoCall& at = calls.back();
  bool is_there = false, is_written = false, is_pending = false;
  for (const IoCall& call : calls) {
    if (&call == &at || call.path != at.path) continue;
    is_written = is_written || call.call == "write";
    is_pending = call.call == "write" || (is_pending && call.call != "fsync");
    is_there = call.call == "open" || (is_there && call.call != "rename" && call.call != "unlink");
  }
  const bool is_of_save = at.path.find("/checkpoints/") < at.path.size();
  if (at.call == "close") return is_of_save ? !is_written : !is_pending;
  return at.call == "unlink" && at.path.find(".tmp-") < at.path.size() && !is_there;
}

constexpr const char* kSavesDurably = "The run goes on, and saves in run/checkpoints alone";

// The n-th call that `where` counts fails on one rank: what does not hold then. A run that falls
// back goes on from a step before its newest one, which is damaged.
std::string fail_call(const Layout& layout, const FailingCall& fault, const Environment& where,
                      int victim, int n, bool falls_back) {
  const Job job(layout, falls_back ? &damaged_job(layout) : &prepared_job(layout, 2));
  const std::string trace = (job.directory() / "trace").string();
  Environment what = where;
  what.insert(
      what.end(),
      {{"IO_FAULT_CALLS", fault.calls}, {"IO_FAULT_DO", fault.what}, {"IO_FAULT_TRACE", trace}});
  const ProcessResult result = job.run(io_fault(victim, n, what));
  if (result.timed_out) return "hangs: " + result.output;
  std::vector<IoCall> calls = read_trace(trace);
  if (std::ssize(calls) < n) {  // threads, and what goes by the clock, make a call more or less
    if (result.exit_code != 0) return "fails by itself: " + result.output;
    const std::string wrong = check_recovery(job, layout, result.output, 2, falls_back);
    return wrong.empty() ? std::string(Journal::kMissed) : wrong;
  }
  calls.resize(static_cast<std::size_t>(n));
  const std::string& hit = calls.back().path;
  const bool matters = !fault.is_harmless() && !changes_nothing(calls);
  const bool in_save =
      matters && hit.find("/step-") != std::string::npos && hit.find(".tmp-") < hit.size();
  const auto wrong = [&](const std::string& what) {
    return fmt::format("{}, {} {}: exit code {}: {}", what, calls.back().call, hit,
                       result.exit_code, result.output);
  };
  const bool may_end = !fault.is_harmless() && !layout.local;  // a durable one is there
  if (result.exit_code != 0 && (result.exit_code != 7 || !may_end)) return wrong("how it ends");
  if (in_save && layout.local) {  // the run goes on, and saves where nothing fails
    const bool goes_on = result.output.find(kSavesDurably) < result.output.size();
    if (result.exit_code != 0 || !goes_on) return wrong("fast storage ends it");
  } else if (in_save && result.exit_code != 7) {
    return wrong("a save with a hole");
  }
  const bool is_said = result.output.find(fault.reason) != std::string::npos;
  if ((matters || result.exit_code != 0) && !is_said) return wrong("not said");
  return check_recovery(job, layout, result.output, 2, falls_back);
}

void fail_all(Journal& journal, const Layout& layout, const FailingCall& fault,
              const Environment& where, bool falls_back = false) {
  for (int victim = 0; victim < layout.ranks; ++victim) {
    Environment counted = where;
    counted.emplace_back("IO_FAULT_CALLS", fault.calls);
    const Job& start = falls_back ? damaged_job(layout) : prepared_job(layout, 2);
    const int calls = count_calls(layout, victim, counted, start);
    // Two ranks do the same twice; of those every third is enough.
    for (int n = 1; n <= calls; n += layout.ranks > 1 ? 3 : 1) {
      journal.run(fmt::format("{}, {} of rank {} at call {}", layout.name(), fault.what, victim, n),
                  [&] { return fail_call(layout, fault, where, victim, n, falls_back); });
    }
  }
}

}  // namespace

TEST_CASE("T5 a call that fails ends a run with its reason or is got over, and harms nothing") {
  Journal journal("T5", 479);
  const std::vector<FailingCall> faults{
      {"ENOSPC", "open,write,mkdir", "No space left on device"},
      {"EDQUOT", "open,write,mkdir", "Disk quota exceeded"},
      {"EIO", "", "Input/output error"},
      {"EROFS", "open,mkdir,rename,unlink,link", "Read-only file system"},
      {"EXDEV", "rename", "Invalid cross-device link"},
      {"EINTR", "write", ""},
      {"short", "write", ""}};
  for (const Layout& layout : {Layout{1, false}, {1, true}, {2, false}, {2, true}}) {
    for (const FailingCall& fault : faults) fail_all(journal, layout, fault, {});
  }
  journal.check();
}

TEST_CASE("T5 the same of a start that finds its newest checkpoint damaged") {
  Journal journal("T5-back", 197);
  for (const Layout& layout : {Layout{1, false}, {2, true}}) {
    for (const FailingCall& fault :
         {FailingCall{"ENOSPC", "open,write,mkdir", "No space left on device"},
          {"EIO", "", "Input/output error"},
          {"EROFS", "open,mkdir,rename,unlink,link", "Read-only file system"}}) {
      fail_all(journal, layout, fault, {}, true);
    }
  }
  journal.check();
}

TEST_CASE("T5 fast storage that fails costs a run that storage, and none of its steps") {
  Journal journal("T5-local", 600);
  const Environment fast{{"IO_FAULT_UNDER", "/fast/run/checkpoints"}};
  for (const bool async : {false, true}) {
    for (const int ranks : {1, 2}) {
      const Layout layout{.ranks = ranks, .async = async, .local = true};
      for (const FailingCall& fault :
           {FailingCall{"ENOSPC", "open,write,mkdir", "No space left on device"},
            {"EIO", "", "Input/output error"},
            {"EROFS", "open,mkdir,rename,unlink,link", "Read-only file system"},
            {"short", "write", ""}}) {
        fail_all(journal, layout, fault, fast);
      }
    }
  }
  journal.check();
}

TEST_CASE("T5 a call to a file beside checkpoints that fails is said, and costs no step") {
  Journal journal("T5-files", 233);
  for (const Layout& layout : {Layout{1, false}, {2, false}}) {
    for (const FailingCall& fault :
         {FailingCall{"ENOSPC", "open,write,mkdir", "No space left on device"},
          {"EIO", "", "Input/output error"},
          {"EROFS", "open,mkdir,rename,unlink,link", "Read-only file system"},
          {"EINTR", "write", ""},
          {"short", "write", ""}}) {
      fail_all(journal, layout, fault, kFilesBeside);
    }
  }
  journal.check();
}

TEST_CASE("a signal ends a run that checks and loads what it goes on from, at once") {
  for (const Layout& layout : {Layout{1}, Layout{2}}) {
    for (const bool falls_back : {false, true}) {
      CAPTURE(layout.ranks);
      CAPTURE(falls_back);
      const Job job(layout, &prepared_job(layout, 4));
      const auto shard = job.checkpoints() / "step-00000004" / "shard-0000-0000.safetensors";
      if (falls_back) {
        std::string bytes = read_file(shard);
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        write_file_atomic(shard, bytes);
      }
      const Environment slow{{"IO_FAULT_CALLS", "read"}, {"IO_FAULT_DO", "delay:50"}};
      const ProcessResult result =
          job.run_signalled(io_fault(0, 0, slow), SIGUSR1, falls_back ? "is not used: " : "plan: ");
      INFO(result.output);
      CHECK(result.exit_code == 75);
      const bool checks = result.output.find("while checking a checkpoint") != std::string::npos;
      CHECK((checks || !falls_back));  // which of them it was in otherwise is a matter of time
      if (!falls_back) {
        CHECK(check_recovery(job, layout, result.output, 4) == "");
        continue;
      }
      CHECK(job.run().exit_code == 0);
      CHECK(job.fingerprint(6) == expected_fingerprint(layout));
    }
  }
}

TEST_CASE("T5 a read that fails once is said, and costs neither the start nor a checkpoint") {
  Journal journal("T5-reads", 307);
  struct Fault {
    const char* what;
    bool is_harmless;  // the rest is read by another call
  };
  for (const Layout& layout : {Layout{1, false}, {1, true}, {2, false}, {2, true}}) {
    for (const Fault& fault : {Fault{"EIO", false}, {"EINTR", true}, {"short", true}}) {
      for (int victim = 0; victim < layout.ranks; ++victim) {
        const Environment hit{{"IO_FAULT_CALLS", "read"}, {"IO_FAULT_DO", fault.what}};
        const int calls = count_calls(layout, victim, hit);
        REQUIRE(calls > 10);
        for (int n = 1; n <= calls; n += layout.ranks > 1 || layout.async ? 3 : 1) {
          journal.run(
              fmt::format("{}, {} of rank {} at read {}", layout.name(), fault.what, victim, n),
              [&]() -> std::string {
                const Job job(layout, &prepared_job(layout, 2));
                const std::string trace = (job.directory() / "trace").string();
                Environment watched = io_fault(victim, n, hit);
                watched.emplace_back("IO_FAULT_TRACE", trace);
                const ProcessResult result = job.run(watched);
                if (result.timed_out) return "hangs: " + result.output;
                // The clock decides how often some files are read: this run may read less than the
                // one whose reads were counted.
                const bool was_hit = std::ssize(read_trace(trace)) >= n;
                if (!was_hit && result.exit_code == 0) return std::string(Journal::kMissed);
                // What cannot be read once is read again: neither the start nor a checkpoint is
                // given up for it.
                if (result.exit_code != 0) {
                  return fmt::format("exit code {}: {}", result.exit_code, result.output);
                }
                const bool resumed = result.output.find("resumed from step 2") != std::string::npos;
                if (!resumed) return "fell back: " + result.output;
                const bool said = result.output.find("cannot read") != std::string::npos;
                if (!fault.is_harmless && !said) return "no reason: " + result.output;
                return check_recovery(job, layout, result.output, 2);
              });
        }
      }
    }
  }
  journal.check();
}

TEST_CASE("T5 what this user may not read is given up for nothing older, and nothing is changed") {
  Journal journal("T5-rights", 5);
  for (const Layout& layout : {Layout{1, false}, {2, true}}) {
    for (const char* closed : {"/step-00000004/shard-", "/step-00000004/manifest", "/manifest"}) {
      for (const char* change : {"checkpoint.resume=auto", "checkpoint.resume=4"}) {
        journal.run(fmt::format("{}, {}, {}", layout.name(), closed, change), [&]() -> std::string {
          const Job job(layout, &prepared_job(layout, 4));
          const std::string before = job.fingerprint(4);
          Environment hit{{"IO_FAULT_UNDER", closed},
                          {"IO_FAULT_CALLS", "look"},
                          {"IO_FAULT_DO", "EACCES"},
                          {"IO_FAULT_RANK", ""}};
          const ProcessResult result = job.run(io_fault(0, 0, hit), {change});
          if (result.exit_code != 7) {
            return fmt::format("exit code {}: {}", result.exit_code, result.output);
          }
          for (const char* part : {"run/checkpoints/step-00000004/", ": Permission denied",
                                   "give this user the right to read it"}) {
            if (result.output.find(part) > result.output.size())
              return "not said: " + result.output;
          }
          if (job.fingerprint(4) != before) return "step 4 is another one";
          return check_recovery(job, layout, result.output, 4);
        });
      }
    }
  }
  journal.check();
}

TEST_CASE("a run whose checkpoints this user may not write says that, and nothing of leftovers") {
  const Job job({}, &prepared_job({}, 2));
  for (const char* reason : {"EACCES", "EROFS"}) {
    const ProcessResult result = job.run(io_fault(0, 0,
                                                  {{"IO_FAULT_UNDER", "/run/checkpoints/lock.tmp-"},
                                                   {"IO_FAULT_CALLS", "open,unlink"},
                                                   {"IO_FAULT_DO", reason}}));
    INFO(result.output);
    CHECK(result.exit_code == 7);
    CHECK(result.output.find("run/checkpoints is not writable for this user: ") <
          result.output.size());
    CHECK(result.output.find("; make it so, or choose another run.output_dir") <
          result.output.size());
    CHECK(result.output.find("cannot remove it") > result.output.size());
  }
}

// What cannot be looked up, or listed, is not taken for missing.
TEST_CASE("T5 a look at a directory that fails is said, and nothing follows from it") {
  Journal journal("T5-looks", 47);
  const Environment hit{{"IO_FAULT_CALLS", "look"}, {"IO_FAULT_DO", "EIO"}};
  for (const Layout& layout : {Layout{1, false}, {2, true}}) {
    for (int victim = 0; victim < layout.ranks; ++victim) {
      const int calls = count_calls(layout, victim, hit);
      REQUIRE(calls > 10);
      for (int n = 1; n <= calls; n += layout.ranks) {
        journal.run(
            fmt::format("{}, rank {} at look {}", layout.name(), victim, n), [&]() -> std::string {
              const Job job(layout, &prepared_job(layout, 2));
              const std::string trace = (job.directory() / "trace").string();
              Environment watched = hit;
              watched.emplace_back("IO_FAULT_TRACE", trace);
              const ProcessResult result = job.run(io_fault(victim, n, watched));
              if (result.timed_out) return "hangs: " + result.output;
              const bool was_hit = std::ssize(read_trace(trace)) >= n;
              if (!was_hit && result.exit_code == 0) return std::string(Journal::kMissed);
              if (result.exit_code != 0 && result.exit_code != 7) {
                return fmt::format("exit code {}: {}", result.exit_code, result.output);
              }
              const bool resumed = result.output.find("resumed from step 2") != std::string::npos;
              if (result.exit_code == 0 && !resumed) return "fell back: " + result.output;
              const bool said = result.output.find("Input/output error") != std::string::npos;
              if (result.exit_code != 0 && !said) return "no reason: " + result.output;
              return check_recovery(job, layout, result.output, 2);
            });
      }
    }
  }
  journal.check();
}

}  // namespace llmtrain::test
