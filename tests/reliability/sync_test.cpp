// What is written and does not reach the disk.
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
