#pragma once
/// How the scale of a block follows from the largest magnitude in it. A number x has the code of
/// x * scale, and the code of value v stands for v * scale_inv.
///
/// The formulas are Transformer Engine's (common/recipe/{current_scaling,delayed_scaling}.cu,
/// tests/pytorch/references/quantize_scale_calc.py), in FP32, one rounding an operation.

#include <cstdint>
#include <limits>

#include "kernels/quantize/number_format.hpp"

namespace llmtrain::kernels {

struct Scale {
  float scale = 1, scale_inv = 1;
};

inline constexpr float kMaxF32 = std::numeric_limits<float>::max();

/// x rounded down to a power of two, for normal x > 0; 0 stays.
constexpr float floor_to_power_of_two(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7f800000u);
}

/// scale = max / amax, as it is or rounded down to a power of two. A block of zeros has scale 1. A
/// scale that overflows is `largest`. A block with an infinity has scale 0, so that all of it
/// becomes NaN.
constexpr Scale scale_of_amax(float max, float amax, float largest, bool power_of_two) {
  if (amax == 0) return {1, 1};
  float scale = max / amax;
  if (scale > kMaxF32) scale = largest;
  if (power_of_two) scale = floor_to_power_of_two(scale);
  return {scale, 1 / scale};
}

/// Which of a history's numbers the next scale is made from.
enum class HistoryAmax : std::uint8_t { max, most_recent };

/// scale = (max / amax) / 2^margin. It stays what it was where amax is not finite or not above 0; a
/// scale that overflows is the largest of FP32.
constexpr Scale scale_of_history(float max, float amax, int margin, float old_scale) {
  float scale = old_scale;
  if (amax > 0 && amax <= kMaxF32) {
    scale = max / amax * power_of_two(-margin);
    if (scale > kMaxF32) scale = kMaxF32;
  }
  return {scale, 1 / scale};
}

}  // namespace llmtrain::kernels
