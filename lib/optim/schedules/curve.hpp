#pragma once
/// Curves from 1 at x = 0 to `end` at x = 1, all falling.

#include <cmath>
#include <numbers>

namespace llmtrain::optim::schedules {

inline double linear_curve(double x, double end) { return end + (1 - end) * (1 - x); }
/// SGDR (arXiv 1608.03983), equation 5.
inline double cosine_curve(double x, double end) {
  return end + (1 - end) * 0.5 * (1 + std::cos(std::numbers::pi * x));
}
/// The same ratio from step to step; `end` > 0.
inline double exponential_curve(double x, double end) { return std::pow(end, x); }
/// "Scaling laws and compute-optimal training beyond fixed training durations" (arXiv 2405.18392).
inline double one_minus_sqrt_curve(double x, double end) {
  return end + (1 - end) * (1 - std::sqrt(x));
}

}  // namespace llmtrain::optim::schedules
