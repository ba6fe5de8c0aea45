#include "lib/optim/lr_schedule.hpp"

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/recipe/keys.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

LrSchedule schedule_of(const std::string& yaml, const Horizon& horizon) {
  LrSchedulerOptions options;
  read_options(options, yaml);
  return {options, horizon};
}

LrSchedule schedule_of(const std::string& yaml, std::int64_t total_steps) {
  return schedule_of(yaml, Horizon::uniform(total_steps, 1000));
}

std::string refusal_of(const std::string& yaml, std::int64_t total_steps) {
  try {
    schedule_of(yaml, total_steps);
  } catch (const RecipeError& e) {
    return e.what();
  }
  return "";
}

std::vector<double> factors(const LrSchedule& schedule) {
  std::vector<double> all;
  for (std::int64_t s = 1; s <= schedule.total_steps(); ++s) all.push_back(schedule.factor(s));
  return all;
}

constexpr double kPi = 3.14159265358979323846;

// Tokens of a run whose batch grows: 100, 200, 300, ... per step.
Horizon ramp(std::int64_t total_steps) {
  return {total_steps, [](std::int64_t step) {
            return static_cast<std::uint64_t>(100 * (step - 1) * step / 2);
          }};
}

}  // namespace

TEST_CASE("every schedule rises to its peak in the warm-up, starts there and never rises again") {
  for (const LrScheduleRow& row : lr_schedule_table()) {
    CAPTURE(row.name);
    const auto f = factors(schedule_of("{type: " + std::string(row.name) + ", warmup: 8}", 100));

    for (int s = 1; s <= 8; ++s) CHECK(f[s - 1] == s / 8.0);
    CHECK(f[8] == 1);
    for (std::size_t i = 8; i < f.size(); ++i) {
      CHECK(f[i] <= f[i - 1]);
      CHECK(f[i] > 0);
    }
    CHECK((row.name == "constant" ? f.back() == 1 : f.back() < 0.3));
    CHECK(!row.doc.empty());
  }
}

TEST_CASE("every schedule starts at its peak without a warm-up and reads all of its keys") {
  for (const LrScheduleRow& row : lr_schedule_table()) {
    CAPTURE(row.name);
    LrSchedulerOptions options;
    read_options(options, "{type: " + std::string(row.name) + ", warmup: 0}");
    const LrSchedule schedule(options, Horizon::uniform(50, 10));
    CHECK(schedule.factor(1) == 1);
    CHECK(recipe::unread_keys(options) == std::vector<std::string>{});
    CHECK(recipe::declaration_mistakes(options) == std::vector<std::string>{});
  }
}

TEST_CASE("every schedule stands a run of no, one or two steps, and a run that is all warm-up") {
  for (const LrScheduleRow& row : lr_schedule_table()) {
    CAPTURE(row.name);
    // The default step_size, 30 % of two steps, is one step; of one step it is none.
    const std::string type =
        "{type: " + std::string(row.name) + (row.name == "step" ? ", step_size: 1" : "");
    CHECK(schedule_of(type + ", warmup: 0}", 0).total_steps() == 0);
    CHECK(factors(schedule_of(type + ", warmup: 0}", 1)) == std::vector<double>{1});
    CHECK(factors(schedule_of(type + ", warmup: 0}", 2))[0] == 1);
    CHECK(factors(schedule_of(type + ", warmup: 2}", 2)) == std::vector<double>{0.5, 1});
    CHECK_THROWS_AS(schedule_of(type + ", warmup: 0}", 2).factor(0), InternalError);
    CHECK_THROWS_AS(schedule_of(type + ", warmup: 0}", 2).factor(3), InternalError);
  }
}

TEST_CASE("linear and cosine follow their formulas down to min_lr_ratio") {
  const auto line = schedule_of("{type: linear, warmup: 10, min_lr_ratio: 0.2}", 110);
  const auto wave = schedule_of("{type: cosine, warmup: 10, min_lr_ratio: 0.2}", 110);
  for (int s = 11; s <= 110; ++s) {
    const double x = (s - 11) / 100.0;
    CHECK(line.factor(s) == test::relative(1 - 0.8 * x, 1e-14));
    CHECK(wave.factor(s) == test::relative(0.6 + 0.4 * std::cos(kPi * x), 1e-14));
  }
}

TEST_CASE("cosine restarts at the peak of equal or of growing cycles") {
  const auto equal = schedule_of("{type: cosine, warmup: 0, num_cycles: 3, min_lr_ratio: 0}", 300);
  for (int s = 1; s <= 300; ++s) {
    const double x = ((s - 1) % 100) / 100.0;
    CHECK(equal.factor(s) == test::relative(0.5 * (1 + std::cos(kPi * x)), 1e-13));
  }

  // 10 + 20 + 40 steps after a warm-up of 5.
  const auto growing =
      schedule_of("{type: cosine, warmup: 5, num_cycles: 3, cycle_mult: 2, min_lr_ratio: 0.1}", 75);
  for (const int peak : {6, 16, 36}) CHECK(growing.factor(peak) == 1);
  for (const int last : {15, 35, 75}) CHECK(growing.factor(last) < 0.13);
  CHECK(growing.factor(26) == test::relative(0.55));
  CHECK(growing.factor(56) == test::relative(0.55));
}

TEST_CASE("step falls by gamma every step_size steps, not below its floor") {
  const auto f = factors(schedule_of("{type: step, warmup: 2, step_size: 3, gamma: 0.5}", 11));
  CHECK(f == std::vector<double>{0.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25});
  CHECK(schedule_of("{type: step, warmup: 0, step_size: 1, gamma: 0.5, min_lr_ratio: 0.3}", 9)
            .factor(9) == 0.3);
}

TEST_CASE("exponential falls by gamma per step, or so that the run ends at min_lr_ratio") {
  const auto by_gamma = schedule_of("{type: exponential, warmup: 0, gamma: 0.9}", 20);
  for (int s = 1; s <= 20; ++s) {
    CHECK(by_gamma.factor(s) == test::relative(std::pow(0.9, s - 1), 1e-14));
  }
  CHECK(schedule_of("{type: exponential, warmup: 0, gamma: 0.1}", 20).factor(20) == 0.1);
  const auto by_end = schedule_of("{type: exponential, warmup: 4, min_lr_ratio: 0.01}", 104);
  CHECK(by_end.factor(55) == test::relative(0.1));
  CHECK(by_end.factor(104) == test::relative(std::pow(0.01, 0.99)));
}

TEST_CASE("wsd stays at the peak and decays in each style over the last steps") {
  const auto style = [](const std::string& name) {
    return schedule_of(
        "{type: wsd, warmup: 10, decay: 40, min_lr_ratio: 0.1, decay_style: " + name + "}", 100);
  };
  for (const std::string name : {"cosine", "linear", "exponential", "1-sqrt"}) {
    CAPTURE(name);
    const auto schedule = style(name);
    for (int s = 10; s <= 61; ++s) CHECK(schedule.factor(s) == 1);
    for (int s = 62; s <= 100; ++s) {
      const double x = (s - 61) / 40.0;
      double expected = 0.1 + 0.9 * (1 - std::sqrt(x));
      if (name == "cosine") expected = 0.1 + 0.45 * (1 + std::cos(kPi * x));
      if (name == "linear") expected = 1 - 0.9 * x;
      if (name == "exponential") expected = std::pow(0.1, x);
      CHECK(schedule.factor(s) == test::relative(expected, 1e-14));
    }
  }
  for (const double f : factors(schedule_of("{type: wsd, warmup: 0, decay: 0}", 30))) {
    CHECK(f == 1);
  }
}

TEST_CASE("warm-up and decay are given in steps, percents or tokens") {
  const auto warmup = [](const std::string& span) {
    return schedule_of("{type: constant, warmup: " + span + "}", 200).warmup_steps();
  };
  CHECK(warmup("30") == 30);
  CHECK(warmup("'5%'") == 10);
  CHECK(warmup("'2500 tok'") == 3);
  CHECK(warmup("'3k tok'") == 3);
  CHECK(warmup("'200k tok'") == 200);
  const auto wsd = schedule_of("{type: wsd, warmup: 0, decay: '10500 tok'}", 200);
  CHECK(wsd.factor(190) == 1);
  CHECK(wsd.factor(191) < 1);
}

TEST_CASE("a span of tokens under a batch ramp is the fewest steps that hold them") {
  // Steps 1 to 4 hold 100, 300, 600, 1000 tokens; the last two of ten hold 1900, the last three
  // 2700.
  CHECK(steps_from_start(recipe::Span::tokens(600), ramp(10)) == 3);
  CHECK(steps_from_start(recipe::Span::tokens(601), ramp(10)) == 4);
  CHECK(steps_from_start(recipe::Span::tokens(0), ramp(10)) == 0);
  CHECK(steps_from_start(recipe::Span::tokens(5501), ramp(10)) == 11);
  CHECK(steps_to_end(recipe::Span::tokens(1900), ramp(10)) == 2);
  CHECK(steps_to_end(recipe::Span::tokens(1901), ramp(10)) == 3);
  CHECK(steps_to_end(recipe::Span::tokens(5501), ramp(10)) == 11);
  CHECK(schedule_of("{type: constant, warmup: '600 tok'}", ramp(10)).factor(1) == 1.0 / 3);
}

TEST_CASE("what does not fit into the run is refused with the key's place") {
  const std::string warmup = refusal_of("type: linear\nwarmup: 101\n", 100);
  CHECK(warmup.find("test.yaml:2:") == 0);
  CHECK(warmup.find("warmup: 101 is longer than the run of 100 steps") != std::string::npos);
  CHECK(!refusal_of("{type: linear, warmup: '1M tok'}", 100).empty());
  CHECK(!refusal_of("{type: linear, warmup: 18446744073709551615}", 100).empty());
  CHECK(!refusal_of("{type: constant, warmup: 1}", 0).empty());
  CHECK(!refusal_of("{type: wsd, warmup: 50, decay: 51}", 100).empty());
  CHECK(refusal_of("{type: wsd, warmup: 50, decay: 50}", 100).empty());
  CHECK(!refusal_of("{type: cosine, warmup: 0, num_cycles: 101}", 100).empty());
  CHECK(!refusal_of("{type: cosine, warmup: 0, num_cycles: 999, cycle_mult: 9}", 100).empty());
  CHECK(!refusal_of("{type: step, warmup: 0, step_size: 0}", 100).empty());
}

TEST_CASE("keys that contradict each other or have no effect are refused") {
  CHECK(!refusal_of("{type: cosine, cycle_mult: 2}", 100).empty());
  CHECK(!refusal_of("{type: exponential, min_lr_ratio: 0}", 100).empty());
  CHECK(!refusal_of("{type: wsd, decay_style: exponential, min_lr_ratio: 0}", 100).empty());
  CHECK(!refusal_of("{type: constant, min_lr_ratio: 0.5}", 100).empty());
  CHECK(!refusal_of("{type: linear, min_lr_ratio: 1.5}", 100).empty());
}

TEST_CASE("over time, a step that begins late takes the factor of the step that is due") {
  const LrSchedule time = schedule_of("{type: linear, warmup: 10%, horizon: time}", 100);
  const LrSchedule steps = schedule_of("{type: linear, warmup: 10%}", 100);
  for (const std::int64_t step : {1, 2, 10, 11, 50, 100}) {
    // Nothing changes before its time is due, nor where the schedule goes by steps.
    CHECK(time.factor(step, 0) == steps.factor(step));
    CHECK(time.factor(step, static_cast<double>(step - 1) / 100) == steps.factor(step));
    CHECK(steps.factor(step, 0.9) == steps.factor(step));
  }
  CHECK(time.factor(1, 0.055) == steps.factor(6));  // within the warm-up
  CHECK(time.factor(2, 0.5) == steps.factor(51));
  CHECK(time.factor(2, 0.999) == steps.factor(100));
  CHECK(time.factor(60, 0.5) == steps.factor(60));
  for (const double over : {1.0, 1.7, 1e300}) CHECK(time.factor(2, over) == steps.factor(100));
}

TEST_CASE("an inverse square root falls by the root of two after its timescale") {
  const LrSchedule given = schedule_of("{type: inverse_sqrt, warmup: 5, timescale: 30}", 100);
  CHECK(given.factor(5 + 1 + 30) == test::relative(std::sqrt(0.5), 1e-15));
  CHECK(given.factor(5 + 1 + 90) == test::relative(0.5, 1e-15));
  const LrSchedule warmed_up = schedule_of("{type: inverse_sqrt, warmup: 10}", 100);
  CHECK(warmed_up.factor(10 + 1 + 30) == test::relative(0.5, 1e-15));
  const LrSchedule cold = schedule_of("{type: inverse_sqrt, warmup: 0}", 100);
  CHECK(cold.factor(100) == test::relative(std::sqrt(10000.0 / 10099.0), 1e-15));
}

}  // namespace llmtrain::optim
