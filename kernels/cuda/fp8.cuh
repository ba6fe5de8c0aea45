#pragma once
/// Conversions to codes of eight bits as the hardware has them, and bytes of words.

#include "kernels/cuda/simt.cuh"
#include "kernels/quantize/number_format.hpp"

namespace llmtrain::kernels::cuda {

/// Codes of two numbers up to limit_of() their format, kE5M2 or kE4M3, as encode() gives them:
/// `low` in the lower byte.
#if defined(LLMTRAIN_CUDA_EMULATION) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 890
template <bool e5m2>
__device__ __forceinline__ std::uint32_t fp8_pair(float low, float high) {
  constexpr NumberFormat kFormat = e5m2 ? kE5M2 : kE4M3;
  return encode(kFormat, low) | std::uint32_t{encode(kFormat, high)} << 8;
}
#else
template <bool e5m2>
__device__ __forceinline__ std::uint32_t fp8_pair(float low, float high) {
  std::uint16_t pair;
  if constexpr (e5m2) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
#endif

/// Byte i is the one of x (0 to 3) or y (4 to 7) that digit i of `which` names.
__device__ __forceinline__ std::uint32_t bytes_of(std::uint32_t x, std::uint32_t y,
                                                  std::uint32_t which) {
#ifdef LLMTRAIN_CUDA_EMULATION
  const std::uint64_t both = x | std::uint64_t{y} << 32;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<std::uint32_t>(both >> (8 * (which >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
#else
  return __byte_perm(x, y, which);
#endif
}

}  // namespace llmtrain::kernels::cuda
