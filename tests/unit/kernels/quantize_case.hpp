#pragma once
/// Matrices that are quantized in tests, as scripts/golden/quantize.py makes them.

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/quantize/quantize.hpp"
#include "tests/support/formula.hpp"

namespace llmtrain::kernels::quantized {

using llmtrain::test::formula_below;
using llmtrain::test::formula_weights;

/// Numbers over 40 binades, with zeros, subnormal ones, rows of zeros, NaNs and infinities.
inline std::vector<float> quantized_matrix(std::int64_t rows, std::int64_t cols, bool special) {
  std::vector<float> x = formula_weights("quantize", rows * cols, 0, 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(x[i], formula_below("quantize exponent", 41, i) - 20);
    if (i % 97 == 13) x[i] = 0;
    if (i % 211 == 5) x[i] = 1e-40f;
    if (special && i % 307 == 100) x[i] = std::numeric_limits<float>::quiet_NaN();
    if (special && i % 1009 == 1000) x[i] = -std::numeric_limits<float>::infinity();
    if (static_cast<std::int64_t>(i) / cols % 7 == 2) x[i] = 0;
  }
  return x;
}

inline std::uint64_t fnv(const void* data, std::size_t size) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (std::size_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<const std::uint8_t*>(data)[i]) * 0x100000001B3u;
  }
  return hash;
}

/// What quantizing a matrix gives.
struct QuantizedMatrix {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, y;
  double saturated = 0;
};

/// The scale that tests give quantizers whose scales come from a history.
inline float scale_of_earlier_steps(const Quantizer& quantizer) {
  return quantizer.format.max / 1000.0f;
}

/// NaN is NaN; any other numbers are the same by their bits.
inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    if (!both_nan && std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return false;
    }
  }
  return true;
}

inline bool same(const QuantizedMatrix& a, const QuantizedMatrix& b) {
  return a.codes == b.codes && same_numbers(a.scales, b.scales) && same_numbers(a.y, b.y) &&
         a.saturated == b.saturated;
}

}  // namespace llmtrain::kernels::quantized
