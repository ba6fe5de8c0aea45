#pragma once
/// Sums over the lanes of a warp and over a thread block, in a fixed order; and what goes before a
/// thread.

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

/// Over the lanes up to the calling one, itself included. The whole warp must come.
__device__ __forceinline__ int sum_through_lane(int x) {
  for (int step = 1; step < 32; step *= 2) {
    const int left = __shfl_up_sync(0xffffffffu, x, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) x += left;
  }
  return x;
}

/// Sum over the threads of the block before the calling one; `all` becomes that over all. `slot` is
/// shared memory of one value per warp; behind the call it is free again.
template <int threads>
__device__ int sum_before_thread(int x, int* slot, int& all) {
  constexpr int kWarps = threads / 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int through = sum_through_lane(x);
  if (threadIdx.x % 32 == 31) slot[warp] = through;
  __syncthreads();
  int before = through - x;
  all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += slot[w];
    all += slot[w];
  }
  __syncthreads();
  return before;
}

}  // namespace llmtrain::kernels::cuda
