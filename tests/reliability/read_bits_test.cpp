// Reads that give other bytes than the storage has, and reads that give none when a run goes back.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/reliability/io_fault.hpp"
#include "tests/reliability/journal.hpp"

namespace llmtrain::test {

// The checkpoint is whole: it must be there afterwards, and what follows from it has its bits,
// whatever a rank has read; or the start ends and says why.
TEST_CASE("T6 a read that gives a bit turned over is found before a step is made of it") {
  Journal journal("T6-reads", 41);
  const Environment hit{
      {"IO_FAULT_UNDER", "/step-00000004/"}, {"IO_FAULT_CALLS", "read"}, {"IO_FAULT_DO", "flip"}};
  for (const Layout& layout : {Layout{1, false},
                               {2, false},
                               {2, false, "{zero: 1}"},
                               {2, false, "{zero: 3}"},
                               {2, false, "{tp: 2}"},
                               {2, false, "{pp: 2}"}}) {
    if (!journal.tries_all() && layout.parallelism != "{}") continue;
    for (int victim = 0; victim < layout.ranks; ++victim) {
      const int calls = count_calls(layout, victim, hit, prepared_job(layout, 4));
      REQUIRE(calls > 5);
      for (int n = 1; n <= calls; ++n) {
        const std::string name =
            fmt::format("{} {}, read {} of rank {}", layout.name(), layout.parallelism, n, victim);
        journal.run(name, [&]() -> std::string {
          const Job job(layout, &prepared_job(layout, 4));
          const std::string before = job.fingerprint(4);
          const std::string trace = (job.directory() / "trace").string();
          Environment watched = io_fault(victim, n, hit);
          watched.emplace_back("IO_FAULT_TRACE", trace);
          const ProcessResult result = job.run(watched);
          if (result.timed_out) return "hangs: " + result.output;
          if (std::ssize(read_trace(trace)) < n) return std::string(Journal::kMissed);
          if (result.exit_code != 0) {
            const bool said = result.output.find("error: ") != std::string::npos;
            if (result.exit_code != 7 && result.exit_code != 4) {
              return fmt::format("exit code {}: {}", result.exit_code, result.output);
            }
            if (!said || job.fingerprint(4) != before) return "changed: " + result.output;
            const ProcessResult rest = job.run();
            if (rest.exit_code != 0) return "no further: " + rest.output;
          }
          const bool same = job.fingerprint(Layout::kSteps) == expected_fingerprint(layout);
          return same ? "" : "other bits: " + result.output;
        });
      }
    }
  }
  journal.check();
}

TEST_CASE("what a rank reads of another one's files, and nobody has checked, ends the start") {
  const Layout layout{2, false};
  const Environment hit{{"IO_FAULT_UNDER", "/step-00000004/shard-0000-"},
                        {"IO_FAULT_CALLS", "read"},
                        {"IO_FAULT_DO", "flip"}};
  const int calls = count_calls(layout, 1, hit, prepared_job(layout, 4));
  int ended = 0;
  for (int i = 0; i < calls && ended == 0; ++i) {
    const int n = (calls / 4 + calls - i) % calls + 1;  // by which the rank has read headers
    const Job again(layout, &prepared_job(layout, 4));
    const ProcessResult result = again.run(io_fault(1, n, hit));
    if (result.output.find("came to rank 1 otherwise than to rank 0") == std::string::npos)
      continue;
    INFO(result.output);
    CHECK(result.exit_code == 7);
    CHECK(result.output.find("of the checkpoint of step 4 ") != std::string::npos);
    ++ended;
  }
  CHECK(ended > 0);
}

TEST_CASE("a way back for which no checkpoint can be read ends with the storage's code") {
  const Layout layout{1, false};
  const Job job(layout, &prepared_job(layout, 0));
  const Environment hit{
      {"IO_FAULT_UNDER", "/step-0000000"}, {"IO_FAULT_CALLS", "read"}, {"IO_FAULT_DO", "EIO"}};
  const Overrides spikes{"optimizer.lr=1",
                         "resilience={on_loss_spike: rollback, loss_spike_window: 1, "
                         "loss_spike_factor: 1.001}"};
  const ProcessResult result = job.run(io_fault(0, 0, hit), spikes);
  INFO(result.output);
  CHECK(result.exit_code == 7);
  CHECK(result.output.find("asks for a way back, and no checkpoint could be read") !=
        std::string::npos);
  CHECK(read_file(job.directory() / "run" / "incidents.jsonl").find("\"stopped\"") !=
        std::string::npos);
}

}  // namespace llmtrain::test
