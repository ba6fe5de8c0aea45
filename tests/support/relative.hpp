#pragma once
/// Comparison by relative error alone: doctest::Approx adds an absolute part of the size of its
/// epsilon, so that anything small equals anything else small.

#include <cmath>
#include <ostream>

namespace llmtrain::test {

/// CHECK(found == relative(expected)); of an expected 0, only 0 itself.
struct Relative {
  double expected, error;

  friend bool operator==(double found, const Relative& r) {
    return std::abs(found - r.expected) <= r.error * std::abs(r.expected);
  }
  friend std::ostream& operator<<(std::ostream& out, const Relative& r) {
    return out << r.expected << " within a factor of 1 +- " << r.error;
  }
};

inline Relative relative(double expected, double error = 1e-6) { return {expected, error}; }

}  // namespace llmtrain::test
