#pragma once
/// What a step's record says of how its tensors are distributed (metrics.diagnostics_interval).

#include <cstdint>
#include <vector>

#include "lib/engine/diagnostics.hpp"
#include "lib/train/metrics.hpp"

namespace llmtrain::train {

/// What a census says. Magnitudes are exact to a fifth of themselves: a bin is a quarter of an
/// octave, and numbers are taken to be spread evenly within it, by their logarithms.
struct Distribution {
  double count = 0;       // finite numbers
  double not_finite = 0;  // how many
  double zeros = 0;       // of the finite: zero, or below 2^-128
  double amax = 0, mean = 0, rms = 0;
  double skew = 0, kurtosis = 0;  // of a normal distribution 0 and 3; 0 where all are equal
};
Distribution distribution_of(const engine::TensorCensus& census);

/// The magnitude that `share` of the finite numbers do not exceed.
double magnitude_at(const std::vector<double>& counts, double share);
/// How many that are not zero have a magnitude below or from `bound` on; exact for powers of two.
double count_below(const std::vector<double>& counts, double bound);
double count_from(const std::vector<double>& counts, double bound);

/// Of every tensor, as `gradient/<what>/<name>`, `weight/...` and `activation/...`: count, zeros,
/// not_finite; amax, rms, p50 and p99 of the magnitudes; skew, kurtosis; and how many numbers
/// formats would lose: fp16_underflow and fp16_overflow, e4m3_underflow and e5m2_underflow, of
/// which the last two take the tensor's largest magnitude for the format's (precision.fp8.scaling:
/// current). Of all tensors of a kind the same as `<kind>/<what>`, shares in place of counts, and
/// the largest kurtosis. `update/ratio/<name>`: how far a step moved a parameter, relative to it,
/// by root mean squares of a sample; `update/ratio`: the median. `noise/...`: what the noise scale
/// of gradients is estimated from (arXiv 1812.06162, appendix A), whose means over many steps say
/// more than noise/scale_tokens, the estimate of this one. Gradients are those without
/// `loss_scale`, but for what formats would lose of them, for which they are as they are held.
void set_diagnostics(StepRecord& record, const engine::DiagnosticsOutcome& outcome,
                     double loss_scale);

/// Whether a key is of one tensor of many: for the file, not for charts.
bool is_of_one_tensor(std::string_view key);

}  // namespace llmtrain::train
