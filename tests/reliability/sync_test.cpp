// What is written and does not reach the disk.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "tests/reliability/io_fault.hpp"

namespace llmtrain::test {

TEST_CASE("an fsync that fails is said, and ends a save unless it was for the hint `latest`") {
  for (const Layout& layout : {Layout{1, false}, {1, true}}) {
    CAPTURE(layout.name());
    const Environment hit{{"IO_FAULT_CALLS", "fsync"}, {"IO_FAULT_DO", "EIO"}};
    const int calls = count_calls(layout, 0, hit);
    REQUIRE(calls >= 8);
    for (int n = 1; n <= calls; n += layout.async ? 3 : 1) {
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

namespace {

/// The calls of a run in the order in which they were made.
std::vector<IoCall> calls_of(const Job& job, const Overrides& more) {
  const TempDir elsewhere;
  const std::string trace = (elsewhere.path() / "trace").string();
  const ProcessResult result = job.run(io_fault(0, 0,
                                                {{"IO_FAULT_UNDER", job.directory().string()},
                                                 {"IO_FAULT_CALLS", "mkdir,rename,fsync"},
                                                 {"IO_FAULT_TRACE", trace}}),
                                       more);
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  return read_trace(trace);
}

/// Names of directories that were made, or of checkpoints that were renamed, that a loss of power
/// may take: the directory where they stand was synced no more.
std::string unsynced(const std::vector<IoCall>& calls) {
  std::string found;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const bool is_made = calls[i].call == "mkdir";
    const std::filesystem::path name = is_made ? calls[i].path : calls[i].second;
    if (calls[i].call == "fsync" || (!is_made && !name.filename().string().starts_with("step-")))
      continue;
    const bool is_synced = std::any_of(
        calls.begin() + static_cast<std::ptrdiff_t>(i), calls.end(), [&](const IoCall& later) {
          return later.call == "fsync" && later.path == name.parent_path();
        });
    if (!is_synced) found += name.string() + "\n";
  }
  return found;
}

}  // namespace

TEST_CASE(
    "directories that are made, and checkpoints that are renamed, are synced where they stand") {
  const Job begun{Layout{}};
  const std::vector<IoCall> first = calls_of(begun, {});
  CHECK(std::count_if(first.begin(), first.end(),
                      [](const IoCall& c) { return c.call == "mkdir"; }) >= 6);
  CHECK(unsynced(first) == "");
  const Job back(Layout{}, &prepared_job(Layout{}, 4));
  const std::vector<IoCall> second = calls_of(back, {"checkpoint.resume=2"});
  CHECK(std::any_of(second.begin(), second.end(),
                    [](const IoCall& c) { return c.second.find(".aside-") != std::string::npos; }));
  CHECK(unsynced(second) == "");
}

// Shards of more than a piece of 4 MiB begin their way to the disk before they are synced: an error
// of the disk may be told there, and is told once.
TEST_CASE("a piece of a large shard that does not get to the disk ends its save") {
  const Overrides large{"model.hidden_size=192", "model.intermediate_size=768",
                        "training.max_steps=2", "checkpoint.max_shard_size=32MiB",
                        "checkpoint.interval=1"};
  const Layout layout;
  const auto pieces = [&](int at, const Environment& more) {
    Environment hit = io_fault(0, at, {{"IO_FAULT_CALLS", "sync_range"}});
    hit.insert(hit.end(), more.begin(), more.end());
    return hit;
  };
  const Job whole(layout, &prepared_job(layout, 0));
  const std::string trace = (whole.directory() / "trace").string();
  REQUIRE(whole.run(pieces(0, {{"IO_FAULT_TRACE", trace}}), large).exit_code == 0);
  const int calls = static_cast<int>(read_trace(trace).size());
  REQUIRE(calls >= 8);
  for (const int n : {1, calls / 2, calls}) {
    CAPTURE(n);
    const Job job(layout, &prepared_job(layout, 0));
    const ProcessResult result = job.run(pieces(n, {{"IO_FAULT_DO", "EIO"}}), large);
    INFO(result.output);
    CHECK(result.exit_code == 7);
    CHECK(result.output.find("/shard-") < result.output.size());
    CHECK(result.output.find("Input/output error") < result.output.size());
    CHECK(job.run({}, large).exit_code == 0);
    CHECK(job.fingerprint(2) == whole.fingerprint(2));
  }
}

}  // namespace llmtrain::test
