#pragma once
/// Elements as the CPU computes with them: fp64 in double, everything else in float.

#include "kernels/kernel.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

constexpr double widen(double x) { return x; }
constexpr float widen(float x) { return x; }
constexpr float widen(bf16 x) { return to_float(x); }
constexpr float widen(f16 x) { return to_float(x); }

/// Rounds to T (to nearest, ties to even; to bf16 and f16 by way of float).
template <class T>
constexpr T narrow(double x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Calls f.operator()<T>() for the element type of a compute dtype.
template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    default:
      fail("no CPU kernel computes in {}", to_string(dtype));
  }
}

}  // namespace llmtrain::kernels
