// FP16 on several ranks: a gradient that overflows on one of them skips the step on all, and the
// scale of the loss is everywhere the same.
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

// The scale doubles after every second good step, so that it is at the border of what the type
// holds time and again, where one micro-batch, stage or slice overflows and others do not.
const std::vector<std::string> kAtTheBorder = {
    "precision={compute: fp16, initial_loss_scale: 64Mi, growth_interval: 2}",
    "training.max_steps=32", "training.global_batch_size=8", "eval.interval=null",
    "resilience={on_non_finite: skip, max_skipped_steps: 1}"};

struct Steps {
  std::vector<double> scales, skipped, losses;
};

Steps steps_of(const Workshop& w, const std::string& run) {
  Steps steps;
  for (const auto& record : train::read_metrics(w.scratch / run / "metrics.jsonl")) {
    const auto loss = record.number(train::metric::kLoss);
    if (!loss) continue;
    steps.losses.push_back(*loss);
    steps.scales.push_back(record.number("train/loss_scale").value_or(0));
    steps.skipped.push_back(record.number("train/skipped_steps").value_or(0));
  }
  return steps;
}

}  // namespace

TEST_CASE("a gradient that overflows on one rank skips the step on all, whatever the layout") {
  const Workshop w;
  const auto run = [&](int ranks, std::string_view name, std::string_view layout) {
    std::vector<std::string> overrides = kAtTheBorder;
    overrides.push_back(fmt::format("run.output_dir={}", name));
    if (!layout.empty()) overrides.emplace_back(layout);
    const ProcessResult result = w.run(ranks, overrides, {.limit_seconds = 120});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  };
  run(1, "one", "");
  const Steps one = steps_of(w, "one");
  REQUIRE(one.scales.size() == 32);
  CHECK(one.skipped.back() >= 5);
  CHECK(one.skipped.back() <= 20);
  int number = 0;
  using Case = std::pair<int, std::string>;
  std::vector<Case> cases{Case(4, "parallelism={dp: 4, zero: 3}"), Case(2, "parallelism.sp=2"),
                          Case(8, "parallelism={dp: 2, tp: 2, pp: 2, zero: 1}")};
  if (!is_quick()) {
    cases.insert(cases.end(),
                 {Case(2, "parallelism.dp=2"), Case(2, "parallelism={dp: 2, zero: 1}"),
                  Case(2, "parallelism.tp=2"), Case(2, "parallelism={pp: 2, pp_schedule: zb_h1}")});
  }
  for (const auto& [ranks, layout] : cases) {
    CAPTURE(layout);
    const std::string name = fmt::format("layout-{}", number++);
    run(ranks, name, layout);
    const Steps steps = steps_of(w, name);
    CHECK(steps.scales == one.scales);
    CHECK(steps.skipped == one.skipped);
    REQUIRE(steps.losses.size() == one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      // 11 bits of mantissa, and 32 steps of a large rate that carry on what tp rounds otherwise.
      CHECK(std::abs(steps.losses[i] - one.losses[i]) <= 2e-2 * one.losses[i]);
    }
  }
}

}  // namespace llmtrain::test
