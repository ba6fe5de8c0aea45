#include "lib/plan/rated_samples.hpp"

#include <algorithm>
#include <cmath>

namespace llmtrain::plan {

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}

double undisturbed_peak(std::span<const FmaRate> rates) {
  std::vector<double> peaks;
  for (const FmaRate& rate : rates) peaks.push_back(rate.peak);
  return quantile(std::move(peaks), 0.9);
}

std::vector<double> seconds_at(double peak, std::span<const RatedSample> samples,
                               std::span<const FmaRate> rates) {
  std::vector<double> seconds;
  for (const RatedSample& sample : samples) {
    const double before = rates[sample.look].mean, after = rates[sample.look + 1].mean;
    seconds.push_back(sample.seconds * 0.5 * (before + after) / peak);
  }
  return seconds;
}

double usual(const std::vector<double>& seconds) {
  const double high = quantile(seconds, 0.95);
  double sum = 0;
  int count = 0;
  for (const double sample : seconds) {
    if (sample > high) continue;
    sum += sample;
    ++count;
  }
  return sum / count;
}

}  // namespace llmtrain::plan
