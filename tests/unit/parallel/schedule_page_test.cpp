// docs/pipeline-schedules.md shows what the generators and the simulator make today.
#include <algorithm>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/parallel/timeline.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

std::string page() {
  std::ifstream file(test_file("../docs/pipeline-schedules.md"));
  REQUIRE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void check_page_has(const std::string& text) {
  if (page().find(text) == std::string::npos) {
    FAIL_CHECK("docs/pipeline-schedules.md lacks this:\n" << text << "(end)");
  }
}

Simulation simulated(const ScheduleRow& row, int stages_per_rank, const ActionCosts& costs,
                     double latency) {
  const double part = 1.0 / stages_per_rank;
  const Schedule schedule = row.make(
      test::shape_of(row, 8, 32, stages_per_rank,
                     {part * costs.forward, part * costs.input_grad, part * costs.weight_grad}));
  SimulationInput input = uniform_work(schedule);
  for (StageWork& work : input.stages) {
    work.bytes_after_forward = work.bytes_after_input_grad = 1;
  }
  input.link = [=](int, int) { return Link{.latency_seconds = latency}; };
  return simulate(schedule, input);
}

// One line of the table of figures.
std::string figures(const ScheduleRow& row, int stages_per_rank) {
  constexpr ActionCosts kEqual{1, 1, 1}, kLongContext{1, 1.6, 0.4};
  const auto percent = [&](const ActionCosts& costs, double latency) {
    return fmt::format("{:.1f} %",
                       100 * simulated(row, stages_per_rank, costs, latency).bubble_fraction);
  };
  const auto most = [](const Simulation& simulation) {
    return std::ranges::max(simulation.ranks, {}, &RankTimeline::peak_bytes).peak_bytes;
  };
  const std::string name = row.stages_per_rank == 0
                               ? fmt::format("`{}`, {} stages", row.name, stages_per_rank)
                               : fmt::format("`{}`", row.name);
  return fmt::format(
      "| {} | {} | {} | {} | {} | {:.4g} |\n", name, percent(kEqual, 0), percent(kEqual, 0.1),
      percent(kLongContext, 0), percent(kLongContext, 0.1),
      static_cast<double>(most(simulated(row, stages_per_rank, kEqual, 0))) / stages_per_rank);
}

}  // namespace

TEST_CASE("docs/pipeline-schedules.md has the picture of every schedule") {
  for (const ScheduleRow& row : schedules()) {
    CAPTURE(row.name);
    const Schedule schedule = row.make(test::shape_of(row, 3, 6, 2));
    check_page_has(fmt::format("## `{}`", row.name));
    check_page_has(fmt::format(
        "```text\n{}```\n", timeline_text(schedule, simulate(schedule, uniform_work(schedule)))));
  }
}

TEST_CASE("docs/pipeline-schedules.md has the figures of every schedule") {
  for (const ScheduleRow& row : schedules()) {
    if (row.stages_per_rank == 0) {
      for (const int stages_per_rank : {2, 4}) check_page_has(figures(row, stages_per_rank));
    } else {
      check_page_has(figures(row, row.stages_per_rank));
    }
  }
}

}  // namespace llmtrain::parallel
