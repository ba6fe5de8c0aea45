// Ranks of mpirun and the axes of their layout.
#include <algorithm>
#include <array>
#include <cstring>
#include <unistd.h>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/parallel/schedule.hpp"
#include "tests/mesh/layouts.hpp"
#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

bool has(const Layout& layout, std::string_view text) {
  return fmt::format("{} |", layout.parallelism).find(text) != std::string::npos;
}

bool has_schedule(const Layout& layout, std::string_view name) {
  if (!has(layout, "parallelism.pp=")) return false;
  if (!has(layout, "parallelism.pp_schedule=")) return name == parallel::schedules().front().name;
  return has(layout, fmt::format("parallelism.pp_schedule={} |", name));
}

}  // namespace

TEST_CASE("every schedule is in a layout that is always tried, and in one beside each other axis") {
  CHECK(std::ranges::count_if(layouts(), &Layout::quick) <= 20);
  for (const parallel::ScheduleRow& row : parallel::schedules()) {
    CAPTURE(row.name);
    const auto tried = [&](auto&& how) {
      return std::ranges::any_of(layouts(), [&](const Layout& layout) {
        return has_schedule(layout, row.name) && how(layout);
      });
    };
    CHECK(tried([](const Layout& layout) { return layout.quick; }));
    for (const std::string_view axis : {"dp=", "tp=", "sp=", "ep=", "zero="}) {
      CAPTURE(axis);
      const std::string text = fmt::format("parallelism.{}", axis);
      CHECK(tried([&](const Layout& layout) { return has(layout, text); }));
    }
  }
}

TEST_CASE("doctor of a recipe shows the ranks of mpirun once, with the machine that they are on") {
  const Workshop w;
  const auto doctor = [&](int ranks, const std::vector<std::string>& arguments) {
    std::vector<std::string> command = mpirun(ranks);
    command.insert(command.end(), {LLMTRAIN_EXECUTABLE, "doctor", "r.yaml"});
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ProcessResult result =
        run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
    CHECK_FALSE(result.timed_out);
    return result;
  };
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  const ProcessResult eight = doctor(8, {"parallelism.tp=2"});
  REQUIRE_MESSAGE(eight.exit_code == 0, eight.output);
  std::string expected =
      "8 ranks = tp 2 x dp 4; neighbours share tp, then dp\n1 machine\n  ranks 0 to 7            "
      "@\n"
      "tp: 4 groups of 2 ranks at a distance of 1, each inside a machine\n"
      "  0 1                     @\n  2 3                     @\n"
      "  4 5                     @\n  6 7                     @\n"
      "dp: 2 groups of 4 ranks at a distance of 2, each inside a machine\n"
      "  0 2 4 6                 @\n  1 3 5 7                 @\n";
  for (std::size_t at = expected.find('@'); at != std::string::npos; at = expected.find('@', at)) {
    expected.replace(at, 1, host.data());
    at += std::strlen(host.data());
  }
  CHECK(eight.output == expected);
  CHECK(doctor(4, {"parallelism={dp: 2, pp: -1}"}).output.find("= dp 2 x pp 2") !=
        std::string::npos);
  const ProcessResult refused = doctor(3, {"parallelism.tp=2"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.output.find("parallelism.tp=2: 2 does not divide the job's 3") !=
        std::string::npos);
  const ProcessResult counted = doctor(2, {"--ranks", "4"});
  CHECK(counted.exit_code == 2);
  CHECK(counted.output.find("here are 2 ranks") != std::string::npos);
}

TEST_CASE("an axis that takes the rest of the ranks trains as if they had been counted") {
  const Workshop w;
  const ProcessResult counted = w.run(4, {"run.output_dir=counted", "parallelism={dp: 2, tp: 2}"});
  REQUIRE_MESSAGE(counted.exit_code == 0, counted.output);
  const std::vector<std::string> rest{"run.output_dir=rest", "parallelism={dp: 2, tp: -1}"};
  const ProcessResult four = w.run(4, rest);
  REQUIRE_MESSAGE(four.exit_code == 0, four.output);
  CHECK(w.records("rest") == w.records("counted"));
  const std::string resolved = read_file(w.scratch / "rest" / "resolved.yaml");
  CHECK(resolved.find("tp: 2  # the rest of 4 ranks") != std::string::npos);
  // Two ranks go on, on which nothing is left for tp to share; and one reads what they saved.
  std::vector<std::string> longer = rest;
  longer.push_back("training.max_steps=16");
  const ProcessResult two = w.run(2, longer);
  REQUIRE_MESSAGE(two.exit_code == 0, two.output);
  CHECK(two.output.find("resumed from step") != std::string::npos);
  const ProcessResult one =
      run_process({LLMTRAIN_EXECUTABLE, "generate", "rest", "--prompt", "word"},
                  w.scratch.path().string(), {.limit_seconds = 60});
  CHECK_MESSAGE(one.exit_code == 0, one.output);
}

}  // namespace llmtrain::test
