#include "lib/train/diagnostics_record.hpp"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
#include "lib/train/report_diagnostics.hpp"

namespace llmtrain::train {

namespace {

using engine::TensorCensus;
using kernels::Census;

TensorCensus census_of(const std::string& name, const std::vector<double>& values) {
  TensorCensus census{.name = name, .counts = std::vector<double>(Census::kBins), .powers = {}};
  for (const double x : values) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    const std::int64_t bin = Census::bin_of(bits);
    ++census.counts[static_cast<std::size_t>(bin)];
    if (bin >= Census::kNotFinite) continue;
    for (int k = 0; k < 4; ++k) census.powers[static_cast<std::size_t>(k)] += std::pow(x, k + 1);
    census.amax = std::max(census.amax, std::abs(x));
  }
  return census;
}

std::vector<double> normal_values(std::size_t count, double scale = 1) {
  const PhiloxKey key = philox_key(1, "test", "diagnostics");
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = scale * normal_quantile(unit_interval(philox_word(key, 0, i)));
  }
  return values;
}

}  // namespace

TEST_CASE("moments of a census are those of its numbers") {
  const Distribution normal = distribution_of(census_of("x", normal_values(200'000, 1e-3)));
  CHECK(normal.count == 200'000);
  CHECK(normal.rms == doctest::Approx(1e-3).epsilon(0.01));
  CHECK(std::abs(normal.skew) < 0.05);
  CHECK(normal.kurtosis == doctest::Approx(3).epsilon(0.03));

  // scipy.stats.skew and kurtosis(fisher=False) of the same.
  const Distribution few = distribution_of(census_of("x", {1, 2, 3, 10}));
  CHECK(few.mean == 4);
  CHECK(few.skew == doctest::Approx(1.0182338).epsilon(1e-6));
  CHECK(few.kurtosis == doctest::Approx(2.2304).epsilon(1e-6));

  const Distribution equal = distribution_of(census_of("x", {0.1, 0.1, 0.1}));
  CHECK(equal.kurtosis == 0);
  const Distribution nothing = distribution_of(census_of("x", {NAN, INFINITY}));
  CHECK(nothing.count == 0);
  CHECK(nothing.not_finite == 2);
  const Distribution zeros = distribution_of(census_of("x", {0, 0, 1}));
  CHECK(zeros.zeros == 2);
}

TEST_CASE("magnitudes by share, and counts by magnitude, are those of the numbers within a bin") {
  std::vector<double> values = normal_values(100'000);
  const TensorCensus census = census_of("x", values);
  for (double& x : values) x = std::abs(x);
  std::sort(values.begin(), values.end());
  for (const double share : {0.01, 0.1, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = values[static_cast<std::size_t>(share * 1e5)];
    CHECK(magnitude_at(census.counts, share) == doctest::Approx(exact).epsilon(0.03));
  }
  CHECK(magnitude_at(census.counts, 1) >= values.back());
  for (const double bound : {0x1p-8, 0x1p-4, 1.0, 2.0}) {  // exactly
    const auto below =
        static_cast<double>(std::lower_bound(values.begin(), values.end(), bound) - values.begin());
    CHECK(count_below(census.counts, bound) == doctest::Approx(below).epsilon(1e-12));
    CHECK(count_from(census.counts, bound) == doctest::Approx(1e5 - below).epsilon(1e-12));
  }
  const TensorCensus zeros = census_of("x", {0, 0, 0, 1});
  CHECK(magnitude_at(zeros.counts, 0.5) == 0);
  CHECK(count_below(zeros.counts, 0x1p-10) == 0);  // zeros lose nothing
}

TEST_CASE("a record says what formats would lose of each tensor, and of all of a kind") {
  engine::DiagnosticsOutcome outcome;
  // Of the first, FP16 makes zeros of 2^-26 and nothing of 2^17; E4M3 with 2^17 as 448 loses what
  // is below 2^17 / 448 * 2^-10.
  outcome.gradients = {census_of("a", {0x1p-26, 0x1p-24, 1, 0x1p17, NAN, 0}),
                       census_of("b", {0.5, -0.5})};
  outcome.weights = {census_of("a", {1, 1})};
  outcome.activations = {census_of("l", {3, 4})};
  outcome.updates = {{"a", 1e-6, 1.0}, {"b", 0, 0}, {"c", 4e-6, 1.0}, {"d", 9e-6, 1.0}};
  StepRecord record{.step = 8, .fields = {}};
  set_diagnostics(record, outcome, 2);
  const auto number = [&](std::string_view key) { return record.number(key).value(); };
  CHECK(number("gradient/count/a") == 5);
  CHECK(number("gradient/not_finite/a") == 1);
  CHECK(number("gradient/zeros/a") == 1);
  CHECK(number("gradient/fp16_underflow/a") == 1);
  CHECK(number("gradient/fp16_overflow/a") == 1);
  CHECK(number("gradient/e4m3_underflow/a") == 2);  // not 1: 0.286
  CHECK(number("gradient/e5m2_underflow/a") == 2);
  CHECK(number("gradient/amax/a") == 0x1p16);  // without the loss's scale
  CHECK(number("gradient/rms/b") == 0.25);
  CHECK(number("gradient/fp16_underflow_share") == doctest::Approx(1.0 / 8));
  CHECK(number("gradient/not_finite_share") == doctest::Approx(1.0 / 8));
  CHECK(number("weight/amax/a") == 1);
  CHECK(number("activation/rms/l") == doctest::Approx(std::sqrt(12.5)));
  CHECK(number("update/ratio/a") == doctest::Approx(1e-3));
  CHECK(record.find("update/ratio/b") == nullptr);
  CHECK(number("update/ratio") == doctest::Approx(2e-3));
  CHECK(record.find("noise/variance") == nullptr);

  CHECK(is_of_one_tensor("gradient/amax/model.layers.0.mlp.up_proj.weight"));
  CHECK(is_of_one_tensor("update/ratio/a"));
  CHECK(!is_of_one_tensor("gradient/amax"));
  CHECK(!is_of_one_tensor("update/ratio"));
  CHECK(!is_of_one_tensor("experts/load/3"));
}

TEST_CASE("the noise scale is the one that expected norms of both batches are made of") {
  // E |G_B|^2 = |g|^2 + variance / B, here times the square of the loss's scale.
  const double squared = 0.25, variance = 1000, scale = 4;
  engine::DiagnosticsOutcome outcome;
  outcome.noise =
      engine::NoiseSample{.squared_norm = scale * scale * (squared + variance / 4096),
                          .squared_norm_of_part = scale * scale * (squared + variance / 512),
                          .tokens = 4096,
                          .tokens_of_part = 512};
  StepRecord record{.step = 1, .fields = {}};
  set_diagnostics(record, outcome, scale);
  CHECK(record.number("noise/squared_gradient").value() == doctest::Approx(squared));
  CHECK(record.number("noise/variance").value() == doctest::Approx(variance));
  CHECK(record.number("noise/scale_tokens").value() == doctest::Approx(variance / squared));

  // Of several steps the ratio of the means, though one alone says nothing.
  StepRecord less{.step = 2, .fields = {}};
  less.set("noise/squared_gradient", -0.05);
  less.set("noise/variance", 600.0);
  CHECK(noise_scale({record, less}).value() == doctest::Approx(1600 / 0.2));
  CHECK(!noise_scale({less}));
  CHECK(!noise_scale({}));
}

}  // namespace llmtrain::train
