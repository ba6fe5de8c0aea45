#pragma once
/// Element types. No promotion anywhere: a kernel lists the exact combinations it accepts.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace llmtrain {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u32, u16, u8 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

/// Floating types of 16 bits.
constexpr bool is_half_width(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// "fp32", "bf16", ... as recipes and logs spell them.
std::string_view to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

/// bfloat16 storage: the upper half of an fp32.
struct bf16 {
  std::uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};

constexpr float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

/// Rounds to nearest, ties to even; NaN stays NaN (quiet).
constexpr bf16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

/// IEEE 754 binary16 storage.
struct f16 {
  std::uint16_t bits = 0;
  bool operator==(const f16&) const = default;
};

/// The largest finite f16; 65,520 and above round to infinity.
inline constexpr double kMaxF16 = 65504;

/// Exact; a NaN becomes quiet.
constexpr float to_float(f16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1fu, fraction = x.bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent < 31) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13 |
                              (fraction != 0 ? 0x400000u : 0u));
}

/// Rounds to nearest, ties to even, subnormals included; NaN stays NaN (quiet). The same bits as
/// the conversions of x86's F16C.
constexpr f16 to_f16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  const auto with_sign = [&](std::uint32_t bits) {
    return f16{static_cast<std::uint16_t>(sign | bits)};
  };
  if (magnitude > 0x7f800000u) return with_sign(0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= std::bit_cast<std::uint32_t>(65520.0f)) return with_sign(0x7c00u);
  if (magnitude >= std::bit_cast<std::uint32_t>(0x1p-14f)) {
    return with_sign((magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13);
  }
  if (magnitude <= std::bit_cast<std::uint32_t>(0x1p-25f)) return with_sign(0);
  // Units of 2^-24, of which `shift` bits of the mantissa are fractions.
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t shift = 126 - (magnitude >> 23);
  const std::uint32_t odd = (mantissa >> shift) & 1u;
  return with_sign((mantissa + (1u << (shift - 1)) - 1 + odd) >> shift);
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace llmtrain
