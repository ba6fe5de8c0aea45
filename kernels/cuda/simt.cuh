#pragma once
/// Everything of the CUDA runtime that kernels use, and the one way to launch. Tests compile these
/// sources for the CPU with a cuda_runtime.h of their own (tests/cuda_emulation); only this header,
/// tensor_core.cuh and warpgroup.cuh know the difference.

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::cuda {

/// Throws DeviceError naming the call and the runtime's reason unless `status` is success.
void check(cudaError_t status, const char* what);

inline cudaStream_t stream_of(const KernelCtx& ctx) {
  return static_cast<cudaStream_t>(ctx.stream.native);
}

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared_bytes = 0;
};

/// Dynamic shared memory that a kernel has unasked: 48 KiB less what it declares itself, for which
/// 4 KiB are left here.
inline constexpr std::size_t kUnaskedShared = 44 << 10;

/// Queues a kernel; nothing for a grid without blocks. More dynamic shared memory than
/// kUnaskedShared must have been allowed by allow_shared().
template <class... P, class... A>
void launch_grid(const KernelCtx& ctx, const Grid& grid, void (*kernel)(P...), A&&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream_of(ctx);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...), "a kernel launch");
}

/// Lets a kernel use so much dynamic shared memory.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "to allow shared memory");
}

constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

#ifdef LLMTRAIN_CUDA_EMULATION
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(simt::dynamic_shared());
}
inline float float_of_f16(std::uint16_t bits) { return to_float(f16{bits}); }
inline std::uint16_t f16_of_float(float x) { return to_f16(x).bits; }
inline std::uint16_t bf16_of_float(float x) { return to_bf16(x).bits; }
inline std::uint32_t bf16_pair(float low, float high) {
  return bf16_of_float(low) | std::uint32_t{bf16_of_float(high)} << 16;
}
inline std::uint32_t f16_pair(float low, float high) {
  return f16_of_float(low) | std::uint32_t{f16_of_float(high)} << 16;
}
inline float exp2_fast(float x) { return std::exp2(x); }
inline float divide_fast(float x, float y) { return x / y; }
/// A GPU faults where one access of several bytes begins at no multiple of them, a CPU need not.
template <class T>
T* aligned(T* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % alignof(T) != 0) simt::misaligned();
  return p;
}
#else
/// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes);
}
__device__ __forceinline__ float float_of_f16(std::uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
/// Rounds to nearest, ties to even, subnormals included; a NaN stays one.
__device__ __forceinline__ std::uint16_t f16_of_float(float x) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ __forceinline__ std::uint16_t bf16_of_float(float x) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
/// Both rounded likewise, `low` in the lower half.
__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ std::uint32_t f16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// 2^x to two units in the last place; results below 2^-126 are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// x / y to two units in the last place, for |y| up to 2^126; beyond, x / y or zero.
__device__ __forceinline__ float divide_fast(float x, float y) {
  float quotient;
  asm("div.approx.f32 %0, %1, %2;" : "=f"(quotient) : "f"(x), "f"(y));
  return quotient;
}
template <class T>
__device__ __forceinline__ T* aligned(T* p) {
  return p;
}
#endif

}  // namespace llmtrain::kernels::cuda
