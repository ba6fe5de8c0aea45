#pragma once
/// The code of a dynamic 8-bit number by arithmetic: of each power of ten its codes lie on a line.
///
/// Take the zero of a map and all below it away, and number n = 1, 2, ... the rest by magnitude.
/// The numbers of step s = 1..7 (a power of ten) are n = first_s + 0..first_s - 1, where first_s =
/// 2^(s - 1) in the map with signs and, counting zero in, 2^s in that without; and n = first_s q(y)
/// for a magnitude y on a bound, where q = 8/9 + slope_s y goes from 1 to 2. Step 0 has zero, step
/// 8 has one.

#include <array>
#include <bit>
#include <cstdint>

#include "kernels/dynamic_map.hpp"

namespace llmtrain::kernels::fast {

/// Of one map, for magnitudes from kLeast to 1 and to what rounding makes of 1. Over every float of
/// these, with and without fused multiply-add, codes are those of a search or beside a bound.
struct CodeLines {
  static constexpr int kSteps = 8;
  /// What is smaller has the same codes.
  static constexpr float kLeast = 1e-7f;

  /// A guess of the step that may be one too low, from a float's bits: log2 of it by a straight
  /// line, a step to 3.2 powers of two. It has kGuessOfZero on it, a multiple of any table's
  /// length.
  static constexpr int kGuessOfZero = 32;
  static constexpr std::int32_t guess(std::int32_t bits) { return (bits + (bits >> 2)) >> 25; }

  /// q = kLow + slope y. It stays below kHigh between the last number of a step and its last bound,
  /// which is one part beyond.
  static constexpr float kLow = 8.0f / 9, kHigh = 2 - 0x1p-8f;
  /// n + kBase in binary has kDigits digits behind the point. Where they are fewer than kNear from
  /// a whole number, rounding may have the wrong code; kBase has kNear on it.
  static constexpr int kDigits = 14;
  static constexpr std::int32_t kFraction = (1 << kDigits) - 1, kNear = 2;
  static constexpr float kBase = 512 + kNear * 0x1p-14f;
  static constexpr std::int32_t kNumberOfBase = std::bit_cast<std::int32_t>(512.0f) >> kDigits;

  /// Twice all steps, for vectors of sixteen.
  using Table = std::array<float, 2 * kSteps>;
  /// The bound above step s.
  alignas(64) Table above{};
  /// Of step s; of steps 0 and 8 the same.
  alignas(64) Table slope{};
  /// first_s = 2^(s + first_exponent).
  int first_exponent;
  /// The code of number n > 0 is n plus this.
  int zero;

  explicit constexpr CodeLines(bool is_signed)
      : first_exponent(is_signed ? -1 : 0), zero(is_signed ? 127 : -1) {
    const DynamicMap& map = is_signed ? kSignedDynamicMap : kUnsignedDynamicMap;
    double power = 1e-7;
    for (std::size_t s = 0; s < kSteps; ++s, power *= 10) {
      const int last = (is_signed ? 1 << s : 2 << s) - 1;
      above[s] = above[s + kSteps] = map.bounds[static_cast<std::size_t>(zero + last)];
      // Of one: such that q >= 1 above the last bound.
      slope[s] = slope[s + kSteps] = s == 0 ? 0.112f : static_cast<float>(10 / (9 * power));
    }
  }
};

inline constexpr CodeLines kCodeLines[] = {CodeLines(true), CodeLines(false)};

/// The value of a dynamic 8-bit number by arithmetic. Of code zero + j, j > 0 or counted with zero
/// from 1 in the map without signs, floor(log2 j) = i says which power of ten it has, and (j - 2^i)
/// / 2^i where its part of [0.1, 1] begins, which ends 2^-i later.
struct CodePoints {
  /// Both halves of [0.1, 1] are counted from their ends; one less the rounded length is a float,
  /// from which the upper can be counted, too.
  static constexpr float kFirst = 0.1f, kLength = 1.0f - kFirst, kFirstOfUpper = 1.0 - kLength;
  static_assert(kFirstOfUpper == 1.0 - kLength);

  int zero;
  /// Half of the power of ten for exponent i + 127 modulo 8. The map without signs has a zero for
  /// j = 1; in that with signs what is at 7 makes a one of j = 128.
  alignas(64) CodeLines::Table half_powers{};

  explicit constexpr CodePoints(bool is_signed) : zero(is_signed ? 127 : -1) {
    constexpr float kPowers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    for (std::size_t e = 0; e < 7; ++e) set(e + (is_signed ? 0 : 1), kPowers[e] / 2);
    const float end = static_cast<float>(kFirst + kLength / 128.0);
    if (is_signed) set(7, 1 / (kFirst + end));
  }

 private:
  constexpr void set(std::size_t i, float half_power) {
    half_powers[(i + 127) % 8] = half_powers[(i + 127) % 8 + 8] = half_power;
  }
};

inline constexpr CodePoints kCodePoints[] = {CodePoints(true), CodePoints(false)};

}  // namespace llmtrain::kernels::fast
