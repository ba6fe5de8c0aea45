// Files beside checkpoints that the disk does not take, while it takes checkpoints.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/starts.hpp"
#include "tests/reliability/io_fault.hpp"

namespace llmtrain::test {

namespace {

std::vector<std::int64_t> recorded_steps(const Job& job) {
  std::vector<std::int64_t> steps;
  for (const train::StepRecord& record :
       train::read_metrics(job.directory() / "run" / "metrics.jsonl")) {
    if (record.number("train/loss")) steps.push_back(record.step);
  }
  return steps;
}

bool has(const ProcessResult& result, std::string_view text) {
  return result.output.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("metrics that cannot be written stop a run, which saves first and lacks none later") {
  for (const Layout& layout : {Layout{1, false}, {2, true}}) {
    const Environment hit{{"IO_FAULT_UNDER", "/run/metrics.jsonl"},
                          {"IO_FAULT_CALLS", "write"},
                          {"IO_FAULT_DO", "EIO"}};
    const int calls = count_calls(layout, 0, hit);
    REQUIRE(calls >= 4);
    for (const int n : {2, 3, calls}) {  // the first one is of a start, which ends it
      CAPTURE(layout.name());
      CAPTURE(n);
      const Job job(layout, &prepared_job(layout, 2));
      const ProcessResult result = job.run(io_fault(0, n, hit));
      INFO(result.output);
      CHECK(result.exit_code == 7);
      CHECK(has(result, "run/metrics.jsonl: cannot write"));
      CHECK(has(result, "; the run saves what it has, and stops"));
      // What comes after the last step stops nobody any more.
      CHECK(has(result, n < calls ? "stopped by metrics that cannot be written after step"
                                  : "all steps are made and saved"));
      const ProcessResult again = job.run();
      INFO(again.output);
      CHECK(again.exit_code == 0);
      // No step is made twice: what was trained before the fault was seen was saved.
      CHECK(train::read_starts(job.directory() / "run").back().lost_steps == 0);
      CHECK(recorded_steps(job) == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});
      CHECK(job.fingerprint(Layout::kSteps) == expected_fingerprint(layout));
    }
  }
}

TEST_CASE("a run goes on without what TensorBoard, a sample or a trace cannot have") {
  const Layout layout;
  const Overrides all{"metrics.tensorboard=true", "profiler={first_step: 3, num_steps: 2}",
                      "eval={interval: 2, sample_prompts: [a], sample_tokens: 4}"};
  struct Place {
    const char *under, *says;
  };
  for (const Place& place :
       {Place{"/run/tensorboard", "TensorBoard has no more of it until its next start"},
        {"/run/samples.jsonl", "the run goes on without this sample of step 2"},
        {"/run/profile", "steps 3 to 4 have no trace: "}}) {
    CAPTURE(place.under);
    const Job job(layout, &prepared_job(layout, 2));
    const ProcessResult result = job.run(
        io_fault(
            0, 1,
            {{"IO_FAULT_UNDER", place.under}, {"IO_FAULT_CALLS", "write"}, {"IO_FAULT_DO", "EIO"}}),
        all);
    INFO(result.output);
    CHECK(result.exit_code == 0);
    CHECK(has(result, place.says));
    CHECK(has(result, "Input/output error"));
    CHECK(job.reported() == Layout::kSteps);
  }
}

}  // namespace llmtrain::test
