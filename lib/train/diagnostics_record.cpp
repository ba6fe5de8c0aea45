#include "lib/train/diagnostics_record.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "kernels/quantize/number_format.hpp"

namespace llmtrain::train {

namespace {

using engine::TensorCensus;
using kernels::Census;

/// Of the numbers of a bin, the share whose magnitude is below `bound`.
double share_below(std::size_t bin, double bound) {
  const auto at = static_cast<std::int64_t>(bin);
  const double least = Census::least_of_bin(at), next = Census::least_of_bin(at + 1);
  if (bound >= next) return 1;
  if (bound <= least) return 0;
  return std::log(bound / least) / std::log(next / least);
}

constexpr auto kFinite = static_cast<std::size_t>(Census::kNotFinite);

/// Below which a magnitude becomes zero in a format whose largest number stands for `amax`.
double underflow_bound(const kernels::NumberFormat& format, double amax) {
  return std::ldexp(amax / format.max, format.least_exponent - 1);
}

struct Losses {
  double fp16_underflow = 0, fp16_overflow = 0, e4m3_underflow = 0, e5m2_underflow = 0;
  Losses& operator+=(const Losses& other) {
    fp16_underflow += other.fp16_underflow;
    fp16_overflow += other.fp16_overflow;
    e4m3_underflow += other.e4m3_underflow;
    e5m2_underflow += other.e5m2_underflow;
    return *this;
  }
};

Losses losses_of(const TensorCensus& census) {
  // Half of the least subnormal of FP16 is 2^-25; what rounds to 2^16 or more has no number there.
  return {
      .fp16_underflow = count_below(census.counts, 0x1p-25),
      .fp16_overflow = count_from(census.counts, 0x1p16),
      .e4m3_underflow = count_below(census.counts, underflow_bound(kernels::kE4M3, census.amax)),
      .e5m2_underflow = count_below(census.counts, underflow_bound(kernels::kE5M2, census.amax))};
}

/// Calls f(name, value) for the values that are counts.
template <class F>
void for_counts(const Distribution& found, const Losses& losses, const F& f) {
  f("zeros", found.zeros);
  f("not_finite", found.not_finite);
  f("fp16_underflow", losses.fp16_underflow);
  f("fp16_overflow", losses.fp16_overflow);
  f("e4m3_underflow", losses.e4m3_underflow);
  f("e5m2_underflow", losses.e5m2_underflow);
}

/// All tensors of a kind; `scale`: what their numbers were multiplied with.
void set_kind(StepRecord& record, std::string_view kind, const std::vector<TensorCensus>& tensors,
              double scale) {
  TensorCensus all{.name = {}, .counts = std::vector<double>(Census::kBins), .powers = {}};
  Losses losses_of_all;
  double largest_kurtosis = 0;
  for (const TensorCensus& census : tensors) {
    const Distribution found = distribution_of(census);
    const Losses losses = losses_of(census);
    const auto set = [&](std::string_view what, MetricValue value) {
      record.set(fmt::format("{}/{}/{}", kind, what, census.name), std::move(value));
    };
    set("count", static_cast<std::int64_t>(found.count));
    set("amax", found.amax / scale);
    set("rms", found.rms / scale);
    set("p50", magnitude_at(census.counts, 0.5) / scale);
    set("p99", magnitude_at(census.counts, 0.99) / scale);
    set("skew", found.skew);
    set("kurtosis", found.kurtosis);
    for_counts(found, losses, [&](std::string_view what, double count) {
      set(what, static_cast<std::int64_t>(std::round(count)));
    });
    losses_of_all += losses;
    largest_kurtosis = std::max(largest_kurtosis, found.kurtosis);
    all.amax = std::max(all.amax, census.amax);
    std::ranges::transform(all.counts, census.counts, all.counts.begin(), std::plus());
    std::ranges::transform(all.powers, census.powers, all.powers.begin(), std::plus());
  }
  const Distribution found = distribution_of(all);
  const double count = std::max(1.0, found.count + found.not_finite);
  const auto set = [&](std::string_view what, double value) {
    record.set(fmt::format("{}/{}", kind, what), value);
  };
  set("amax", found.amax / scale);
  set("rms", found.rms / scale);
  set("p50", magnitude_at(all.counts, 0.5) / scale);
  set("p99", magnitude_at(all.counts, 0.99) / scale);
  set("largest_kurtosis", largest_kurtosis);
  for_counts(found, losses_of_all, [&](std::string_view what, double of_all) {
    set(fmt::format("{}_share", what), of_all / count);
  });
}

void set_updates(StepRecord& record, const std::vector<engine::UpdateSample>& updates) {
  std::vector<double> ratios;
  for (const engine::UpdateSample& sample : updates) {
    if (sample.squared_value == 0) continue;  // a bias that begins with zeros
    ratios.push_back(std::sqrt(sample.squared_update / sample.squared_value));
    record.set("update/ratio/" + sample.name, ratios.back());
  }
  if (ratios.empty()) return;
  const auto middle = ratios.begin() + std::ssize(ratios) / 2;
  std::nth_element(ratios.begin(), middle, ratios.end());
  record.set("update/ratio", *middle);
}

// Estimates without bias of the squared norm of the true gradient and of the trace of a token's
// covariance.
void set_noise(StepRecord& record, const engine::NoiseSample& noise, double loss_scale) {
  const double large = noise.tokens, small = noise.tokens_of_part;
  const double of_large = noise.squared_norm / (loss_scale * loss_scale);
  const double of_small = noise.squared_norm_of_part / (loss_scale * loss_scale);
  const double gradient = (large * of_large - small * of_small) / (large - small);
  const double variance = (of_small - of_large) / (1 / small - 1 / large);
  record.set("noise/squared_gradient", gradient);
  record.set("noise/variance", variance);
  if (gradient > 0 && variance > 0) record.set("noise/scale_tokens", variance / gradient);
}

}  // namespace

double count_below(const std::vector<double>& counts, double bound) {
  double count = 0;
  for (std::size_t bin = 1; bin < kFinite; ++bin) count += counts[bin] * share_below(bin, bound);
  return count;
}

double count_from(const std::vector<double>& counts, double bound) {
  double count = 0;
  for (std::size_t bin = 1; bin < kFinite; ++bin) {
    count += counts[bin] * (1 - share_below(bin, bound));
  }
  return count;
}

double magnitude_at(const std::vector<double>& counts, double share) {
  double all = 0;
  for (std::size_t bin = 0; bin < kFinite; ++bin) all += counts[bin];
  double left = share * all - counts[0];
  if (left <= 0) return 0;
  for (std::size_t bin = 1; bin < kFinite; ++bin) {
    if (left <= counts[bin]) {
      const auto at = static_cast<std::int64_t>(bin);
      const double least = Census::least_of_bin(at);
      // The last bin has no end but infinity.
      const double next = bin + 1 < kFinite ? Census::least_of_bin(at + 1) : least * 0x1.3p0;
      return least * std::pow(next / least, left / counts[bin]);
    }
    left -= counts[bin];
  }
  return 0;
}

Distribution distribution_of(const TensorCensus& census) {
  Distribution found{.zeros = census.counts[0], .amax = census.amax};
  for (std::size_t bin = 0; bin < census.counts.size(); ++bin) {
    (bin < kFinite ? found.count : found.not_finite) += census.counts[bin];
  }
  if (found.count == 0) return found;
  const double m1 = census.powers[0] / found.count, m2 = census.powers[1] / found.count;
  const double m3 = census.powers[2] / found.count, m4 = census.powers[3] / found.count;
  found.mean = m1;
  found.rms = std::sqrt(m2);
  const double variance = m2 - m1 * m1;
  // Of what is one number but for rounding nothing more is known.
  if (!(variance > 1e-12 * m2)) return found;
  found.skew = (m3 - 3 * m1 * m2 + 2 * m1 * m1 * m1) / std::pow(variance, 1.5);
  found.kurtosis =
      (m4 - 4 * m1 * m3 + 6 * m1 * m1 * m2 - 3 * m1 * m1 * m1 * m1) / (variance * variance);
  return found;
}

void set_diagnostics(StepRecord& record, const engine::DiagnosticsOutcome& outcome,
                     double loss_scale) {
  set_kind(record, "gradient", outcome.gradients, loss_scale);
  set_kind(record, "weight", outcome.weights, 1);
  set_kind(record, "activation", outcome.activations, 1);
  set_updates(record, outcome.updates);
  if (outcome.noise) set_noise(record, *outcome.noise, loss_scale);
}

bool is_of_one_tensor(std::string_view key) {
  constexpr std::array<std::string_view, 4> kKinds = {"gradient/", "weight/", "activation/",
                                                      "update/"};
  const bool of_kind =
      std::ranges::any_of(kKinds, [&](std::string_view kind) { return key.starts_with(kind); });
  return of_kind && std::ranges::count(key, '/') > 1;
}

}  // namespace llmtrain::train
