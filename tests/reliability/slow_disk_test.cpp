// Disks that answer, and take their time.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/reliability/io_fault.hpp"

namespace llmtrain::test {

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
    CHECK(result.output.find("storage is slower than saves are due") != std::string::npos);
    for (const int step : {2, 4, 6}) {
      CHECK(result.output.find(fmt::format("saved run/checkpoints/step-{:08}", step)) !=
            std::string::npos);
    }
    // Five writes of a rank, and the fsyncs of their files, take a tenth of a second at least.
    CHECK(result.output.find("; written in ") < result.output.size());
    CHECK(result.output.find("; written in 0.0") > result.output.size());
    CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
  }
}

TEST_CASE("a directory that is slow for one rank makes it no lost one") {
  const Layout layout{2};
  const Job job(layout, &prepared_job(layout, 2));
  const Environment slow{{"IO_FAULT_CALLS", "mkdir"}, {"IO_FAULT_DO", "delay:4000"}};
  const ProcessResult result = job.run(io_fault(0, 1, slow), {"resilience.hang_timeout=2s"});
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(check_recovery(job, layout, result.output, 2) == "");
}

// Nobody waits ten seconds for a rank in which nothing goes on.
TEST_CASE("deleting a checkpoint may take longer than anything that stands still") {
  const Layout layout{1};
  const Job job(layout, &prepared_job(layout, 4));
  const Environment slow{{"IO_FAULT_CALLS", "unlink"}, {"IO_FAULT_DO", "delay:1700"}};
  const ProcessResult result = job.run(io_fault(0, 0, slow), {"resilience.hang_timeout=1s"});
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(check_recovery(job, layout, result.output, 4) == "");
}

TEST_CASE("a run that is done waits for the rank that clears fast storage") {
  const Layout layout{.ranks = 2, .local = true};
  const Job job(layout, &prepared_job(layout, 4));
  const Environment slow{{"IO_FAULT_UNDER", "/fast/run/checkpoints"},
                         {"IO_FAULT_CALLS", "unlink"},
                         {"IO_FAULT_DO", "delay:500"}};
  const ProcessResult result = job.run(io_fault(0, 0, slow), {"resilience.hang_timeout=1s"});
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK_FALSE(job.local_checkpoints().has_value());
  CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
}

}  // namespace llmtrain::test
