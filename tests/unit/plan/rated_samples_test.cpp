#include "lib/plan/rated_samples.hpp"

#include <doctest/doctest.h>

namespace llmtrain::plan {

TEST_CASE("a launch counts as long as it would have taken on the machine undisturbed") {
  // Best windows and means of four looks: half of the machine was gone during the second launch.
  const std::vector<FmaRate> rates{{100, 100}, {100, 80}, {60, 40}, {100, 60}};
  const std::vector<RatedSample> samples{{2, 0}, {2, 1}, {4, 2}};
  CHECK(seconds_at(100, samples, rates) == std::vector<double>{1.8, 1.2, 2});
  CHECK(seconds_at(200, samples, rates) == std::vector<double>{0.9, 0.6, 1});
}

TEST_CASE("the undisturbed peak is the best that lasts") {
  std::vector<FmaRate> rates;
  for (int i = 1; i <= 11; ++i) rates.push_back({10.0 * i, 1});
  CHECK(undisturbed_peak(rates) == 100);  // ten of eleven are at most that
}

TEST_CASE("the usual time is the mean without the few longest") {
  std::vector<double> seconds(20, 1.0);
  seconds.push_back(3.0);
  seconds.push_back(50.0);
  CHECK(usual(seconds) == 1.0);
  CHECK(usual({1.0, 2.0}) == 1.0);
  CHECK(usual({2.0}) == 2.0);
}

}  // namespace llmtrain::plan
