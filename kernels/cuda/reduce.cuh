#pragma once
/// Sums over the lanes of a warp and over a thread block, in a fixed order.

#include "kernels/cuda/simt.cuh"

namespace llmtrain::kernels::cuda {

/// Sum over groups of `lanes` neighbouring lanes, a power of two; every lane gets its group's. The
/// whole warp must come.
template <class W>
__device__ __forceinline__ W sum_of_lanes(W x, int lanes = 32) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

/// Sum over the thread block's `threads`; every thread gets it. `slot` is shared memory of one
/// value per warp that nobody else touches before the next barrier.
template <int threads, class W>
__device__ __forceinline__ W sum_of_block(W x, W* slot) {
  constexpr int kWarps = threads / 32;
  static_assert(threads % 32 == 0 && (kWarps & (kWarps - 1)) == 0 && kWarps <= 32);
  x = sum_of_lanes(x);
  if (threadIdx.x % 32 == 0) slot[threadIdx.x / 32] = x;
  __syncthreads();
  return sum_of_lanes(slot[threadIdx.x % kWarps], kWarps);
}

}  // namespace llmtrain::kernels::cuda
