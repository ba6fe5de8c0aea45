// Disks that lose power and calls that fail: T3, T5 of docs/reliability.md.
#include <csignal>
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

/// One save over two earlier ones, after which the first of these is deleted: every call of it, and
/// what was there before and after.
struct RecordedSave {
  Job job{{}, &prepared_job({}, 4)};
  PowerLoss disk{job.checkpoints()};
  std::vector<IoCall> calls;
  std::map<std::uint64_t, std::string> manifests;
  std::size_t durable_after = 0;  // calls after which the new checkpoint may not be lost

  RecordedSave() {
    for (const std::uint64_t step : {2u, 4u}) add_manifest(step);
    const std::string trace = (job.directory() / "trace").string();
    const ProcessResult run = job.run(io_fault(0, 0, {{"IO_FAULT_TRACE", trace}}));
    require(run.exit_code == 0, "{}", run.output);
    calls = read_trace(trace);
    add_manifest(6);
    bool renamed = false;
    for (std::size_t i = 0; i < calls.size() && durable_after == 0; ++i) {
      const bool visible = calls[i].second.ends_with("step-00000006");
      renamed = renamed || (calls[i].call == "rename" && visible);
      if (renamed && calls[i].call == "fsync" && calls[i].path == job.checkpoints()) {
        durable_after = i + 1;
      }
    }
    require(durable_after > 0, "the directory was not synced after the commit");
  }
  void add_manifest(std::uint64_t step) {
    manifests[step] =
        read_file(job.checkpoints() / checkpoint::step_directory_name(step) / "manifest.json");
  }
};

/// What does not hold when a run starts on this disk.
std::string check_state(const fs::path& root, const RecordedSave& save, bool is_durable) {
  const auto store = checkpoint::CheckpointStore::open_writer(root);
  const std::vector<std::uint64_t> steps = store.list();
  for (const std::uint64_t step : steps) {
    const auto problems = store.verify(step, checkpoint::VerifyLevel::hash);
    if (!problems.empty()) return fmt::format("step {}: {}", step, to_string(problems.front()));
    if (read_file(store.directory_of(step) / "manifest.json") != save.manifests.at(step)) {
      return fmt::format("step {} is a mixture", step);
    }
  }
  if (steps.empty() || steps.back() < (is_durable ? 6 : 4)) {
    return fmt::format("the newest is {}", steps.empty() ? 0 : steps.back());
  }
  if (steps.size() < 2) return "one checkpoint is left";
  return "";
}

}  // namespace

TEST_CASE("T3 a loss of power at any call of a save leaves the old or the new checkpoint") {
  Journal journal("T3", 7);
  const RecordedSave save;
  REQUIRE(save.calls.size() > 40);
  const std::uint64_t seeds = 2000 / save.calls.size() + 3;
  for (std::size_t calls = 0; calls <= save.calls.size(); ++calls) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      journal.run(fmt::format("after {} calls, choice {}", calls, seed), [&] {
        const TempDir place;
        save.disk.write_state(save.calls, calls, seed, place / "disk");
        return check_state(place / "disk", save, calls >= save.durable_after);
      });
    }
  }
  journal.check();
}

TEST_CASE("metrics are on the disk before the checkpoint that they lead to is there") {
  const Job job({}, &prepared_job({}, 2));
  const std::string trace = (job.directory() / "trace").string();
  Environment environment = io_fault(0, 0, {{"IO_FAULT_TRACE", trace}});
  for (auto& [name, value] : environment) {
    if (name == "IO_FAULT_UNDER") value = "/run/";
  }
  REQUIRE(job.run(environment).exit_code == 0);
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
}

TEST_CASE("saves on a disk that is slower than their interval wait for one another, and say so") {
  for (const Layout& layout : {Layout{1, true}, {2, true}}) {
    CAPTURE(layout.name());
    const Job job(layout, &prepared_job(layout, 0));
    const Environment slow{{"IO_FAULT_CALLS", "write,fsync"}, {"IO_FAULT_DO", "delay:20"}};
    const ProcessResult result = job.run(io_fault(0, 0, slow));
    INFO(result.output);
    REQUIRE(result.exit_code == 0);
    CHECK(result.output.find("the save of step 4 waits: step 2 is being written since") !=
          std::string::npos);
    CHECK(result.output.find("storage is slower than checkpoint.interval") != std::string::npos);
    for (const int step : {2, 4, 6}) {
      CHECK(result.output.find(fmt::format("saved run/checkpoints/step-{:08}", step)) !=
            std::string::npos);
    }
    CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
  }
}

TEST_CASE("an fsync that fails is said, and ends a save unless it was for the hint `latest`") {
  for (const Layout& layout : {Layout{1, false}, {1, true}}) {
    CAPTURE(layout.name());
    const Environment hit{{"IO_FAULT_CALLS", "fsync"}, {"IO_FAULT_DO", "EIO"}};
    const int calls = count_calls(layout, 0, hit);
    REQUIRE(calls >= 8);
    for (int n = 1; n <= calls; ++n) {
      CAPTURE(n);
      const Job job(layout, &prepared_job(layout, 2));
      const ProcessResult result = job.run(io_fault(0, n, hit));
      CAPTURE(result.output);
      const bool is_hint = result.output.find("warning: run/checkpoints") != std::string::npos;
      CHECK(result.exit_code == (is_hint ? 0 : 7));
      CHECK(result.output.find("Input/output error") != std::string::npos);
      CHECK(check_recovery(job, layout, result.output, 2) == "");
    }
  }
}

TEST_CASE("T5 a call that fails ends a run with its reason or is got over, and harms nothing") {
  Journal journal("T5", 97);
  struct Fault {
    const char* what;
    const char* calls;
    bool is_harmless;  // a call that is made again
  };
  const std::vector<Fault> faults{{"ENOSPC", "open,write,mkdir", false},
                                  {"EDQUOT", "open,write,mkdir", false},
                                  {"EIO", "", false},
                                  {"EROFS", "open,mkdir,rename,unlink,link", false},
                                  {"EXDEV", "rename", false},
                                  {"EINTR", "write", true},
                                  {"short", "write", true}};
  for (const Layout& layout : {Layout{1, false}, {1, true}, {2, false}, {2, true}}) {
    for (const Fault& fault : faults) {
      for (int victim = 0; victim < layout.ranks; ++victim) {
        const Environment hit{{"IO_FAULT_CALLS", fault.calls}, {"IO_FAULT_DO", fault.what}};
        const int calls = count_calls(layout, victim, hit);
        // Two ranks do the same twice; of those every third is enough.
        for (int n = 1; n <= calls; n += layout.ranks > 1 ? 3 : 1) {
          journal.run(
              fmt::format("{}, {} of rank {} at call {}", layout.name(), fault.what, victim, n),
              [&]() -> std::string {
                const Job job(layout, &prepared_job(layout, 2));
                const ProcessResult result = job.run(io_fault(victim, n, hit));
                if (result.timed_out) return "hangs: " + result.output;
                const bool ends = result.exit_code == 7 && !fault.is_harmless;
                if (!ends && result.exit_code != 0) {
                  return fmt::format("exit code {}: {}", result.exit_code, result.output);
                }
                if (ends && result.output.find("cannot ") == std::string::npos) {
                  return "no reason: " + result.output;
                }
                return check_recovery(job, layout, result.output, 2);
              });
        }
      }
    }
  }
  journal.check();
}

TEST_CASE("a signal ends a run that checks what it goes on from, at once") {
  for (const Layout& layout : {Layout{1}, Layout{2}}) {
    const Job job(layout, &prepared_job(layout, 4));
    const Environment slow{{"IO_FAULT_CALLS", "read"}, {"IO_FAULT_DO", "delay:50"}};
    const ProcessResult result = job.run_signalled(io_fault(0, 0, slow), SIGUSR1, "plan: ");
    INFO(result.output);
    CHECK(result.exit_code == 75);
    CHECK(result.output.find("while checking a checkpoint") != std::string::npos);
    CHECK(check_recovery(job, layout, result.output, 4) == "");
  }
}

TEST_CASE("T5 a read that fails is said, and costs nothing but what the run falls back to") {
  Journal journal("T5-reads", 61);
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
                // The clock decides how often some files are read: this run may read less than the
                // one whose reads were counted.
                const bool was_hit = std::ssize(read_trace(trace)) >= n;
                if (result.timed_out) return "hangs: " + result.output;
                // Of values that are loaded; what is checked is read again.
                const bool ends = result.exit_code == 7;
                if (result.exit_code != 0 && (!ends || fault.is_harmless)) {
                  return fmt::format("exit code {}: {}", result.exit_code, result.output);
                }
                // What cannot be read once is read again: no checkpoint is given up for it.
                const bool resumed = result.output.find("resumed from step 2") != std::string::npos;
                if (result.exit_code == 0 && !resumed) return "fell back: " + result.output;
                const bool said = result.output.find("cannot read") != std::string::npos;
                if (was_hit && !fault.is_harmless && !said) return "no reason: " + result.output;
                return check_recovery(job, layout, result.output, 2);
              });
        }
      }
    }
  }
  journal.check();
}

}  // namespace llmtrain::test
