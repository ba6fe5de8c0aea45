#pragma once
/// Times of launches on a machine that changes its speed, told as they would be undisturbed.

#include <cstddef>
#include <span>
#include <vector>

#include "lib/plan/fma_peak.hpp"

namespace llmtrain::plan {

/// One timed launch, between looks `look` and `look + 1` at the multiply-add rate.
struct RatedSample {
  double seconds = 0;
  std::size_t look = 0;
};

/// The value below which a share `q` of the values lies, linear between them; at least one value.
double quantile(std::vector<double> values, double q);

/// The rate that little disturbs. The very best window may be a boost that nothing longer meets.
double undisturbed_peak(std::span<const FmaRate> rates);

/// Seconds of each sample on a machine at the rate `peak` throughout: it would have taken less by
/// as much as the rates around it were below.
std::vector<double> seconds_at(double peak, std::span<const RatedSample> samples,
                               std::span<const FmaRate> rates);

/// What a launch usually takes. A step meets the machine as it usually is, not at its best, and
/// sums its launches: hence the mean, without the few that something else interrupted.
double usual(const std::vector<double>& seconds);

}  // namespace llmtrain::plan
