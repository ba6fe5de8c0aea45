#pragma once
/// Number formats of few bits as data: one description, one way to encode and one to decode for
/// small floating-point, integer and fixed-point numbers. Constexpr, so that the reference, the
/// vectors' tests and device code have the very same operations.
///
/// OCP 8-bit floating point specification (E4M3 "fn", E5M2); ml_dtypes is the oracle of every
/// encode and decode (scripts/golden/quantize.py).

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>

namespace llmtrain::kernels {

/// Non-negative numbers in ascending order have the codes 0, 1, 2, ...: 2^mantissa_bits of them
/// from 0 in steps of 2^least_exponent, the same number in twice the first step's distance after
/// every further binade. Integers have more mantissa bits than their range has, so that there is
/// one binade.
struct NumberFormat {
  std::string_view name;
  int bits = 8;
  int mantissa_bits = 3;
  int least_exponent = -9;  // the least positive number is 2^least_exponent
  float max = 448;          // the largest finite magnitude, itself such a number
  /// Code of the positive infinity, or -1. Encoding never gives it: it saturates.
  int infinity = -1;
  /// What encodes a NaN; of a format without one, what stands for it.
  int nan = 0x7f;
  /// Negative numbers have the code 2^bits - that of the magnitude, else that with the top bit.
  bool twos_complement = false;

  constexpr std::uint32_t sign_bit() const { return 1u << (bits - 1); }
  friend constexpr bool operator==(const NumberFormat&, const NumberFormat&) = default;
};

inline constexpr NumberFormat kE4M3{.name = "e4m3",
                                    .bits = 8,
                                    .mantissa_bits = 3,
                                    .least_exponent = -9,
                                    .max = 448,
                                    .infinity = -1,
                                    .nan = 0x7f};
inline constexpr NumberFormat kE5M2{.name = "e5m2",
                                    .bits = 8,
                                    .mantissa_bits = 2,
                                    .least_exponent = -16,
                                    .max = 57344,
                                    .infinity = 0x7c,
                                    .nan = 0x7e};

/// For exponents of normal FP32 numbers.
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// A magnitude in units of the distance between its neighbours in the format: below 2^23, and the
/// multiplication is exact.
struct Steps {
  float count = 0;
  /// Binades above the first, in which a step is 2^(least_exponent + binade).
  int binade = 0;
};

/// Of a finite magnitude up to the format's largest.
constexpr Steps steps_of(const NumberFormat& format, float magnitude) {
  const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  const int above = exponent - (format.least_exponent + format.mantissa_bits);
  const int binade = above > 0 ? above : 0;
  return {magnitude * power_of_two(-(format.least_exponent + binade)), binade};
}

/// Half a step beyond the largest number: larger magnitudes do not fit into the format.
constexpr float limit_of(const NumberFormat& format) {
  return format.max + power_of_two(format.least_exponent + steps_of(format, format.max).binade - 1);
}

/// To the nearest whole number, ties to even.
constexpr float round_to_even(float steps) { return (steps + 0x1p23f) - 0x1p23f; }

/// Up with the probability of the fraction, to within 2^-24, by the upper 24 bits of a random word.
/// A whole number stays.
constexpr float round_by_word(float steps, std::uint32_t word) {
  const float below = static_cast<float>(static_cast<std::int32_t>(steps));
  const float chance = static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
  return chance < steps - below ? below + 1.0f : below;
}

/// The code of y with what `round` makes of its steps. Magnitudes above the largest, infinities
/// among them, become the largest. A NaN's code has no sign, because devices do not agree on the
/// signs of theirs.
template <class Round>
constexpr std::uint8_t encode_with(const NumberFormat& format, float y, const Round& round) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(y);
  const float magnitude = std::bit_cast<float>(word & 0x7fffffffu);
  if (magnitude != magnitude) return static_cast<std::uint8_t>(format.nan);
  const Steps steps = steps_of(format, magnitude < format.max ? magnitude : format.max);
  const std::uint32_t code =
      (static_cast<std::uint32_t>(steps.binade) << format.mantissa_bits) +
      static_cast<std::uint32_t>(static_cast<std::int32_t>(round(steps.count)));
  if (word >> 31 == 0) return static_cast<std::uint8_t>(code);
  if (!format.twos_complement) return static_cast<std::uint8_t>(code | format.sign_bit());
  return static_cast<std::uint8_t>((2 * format.sign_bit() - code) & (2 * format.sign_bit() - 1));
}

constexpr std::uint8_t encode(const NumberFormat& format, float y) {
  return encode_with(format, y, [](float steps) { return round_to_even(steps); });
}
constexpr std::uint8_t encode_by_word(const NumberFormat& format, float y, std::uint32_t word) {
  return encode_with(format, y, [word](float steps) { return round_by_word(steps, word); });
}

/// The number of a code; of codes above the largest number's, infinity or NaN.
constexpr float decode(const NumberFormat& format, std::uint8_t code) {
  const bool negative = (code & format.sign_bit()) != 0;
  std::uint32_t magnitude = code & (format.sign_bit() - 1);
  if (negative && format.twos_complement) magnitude = 2 * format.sign_bit() - code;
  const std::uint32_t m = static_cast<std::uint32_t>(format.mantissa_bits);
  const std::uint32_t first = 1u << m;
  const std::uint32_t binade = magnitude < first ? 0 : (magnitude >> m) - 1;
  const float steps = static_cast<float>(static_cast<std::int32_t>(magnitude - (binade << m)));
  float value = steps * power_of_two(format.least_exponent + static_cast<int>(binade));
  if (value > format.max) {
    const bool infinite = static_cast<int>(magnitude) == format.infinity;
    value =
        infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return negative ? -value : value;
}

/// By code.
constexpr std::array<float, 256> decode_table(const NumberFormat& format) {
  std::array<float, 256> table{};
  for (std::size_t code = 0; code < (std::size_t{1} << format.bits); ++code) {
    table[code] = decode(format, static_cast<std::uint8_t>(code));
  }
  return table;
}

}  // namespace llmtrain::kernels
