// The sum of all elements, in FP64: blocks of Sum::kBlock, then the blocks in ascending order.
#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/loss.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kSumThreads = 256;

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_blocks(const T* x, std::int64_t n, double* blocks) {
  __shared__ double of_warps[kSumThreads / 32];
  const std::int64_t begin = blockIdx.x * Sum::kBlock;
  double sum = 0;
#pragma unroll
  for (int e = 0; e < Sum::kBlock; e += kSumThreads) {
    const std::int64_t i = begin + e + threadIdx.x;
    if (i < n) sum += static_cast<double>(x[i]);
  }
  sum = sum_of_block<kSumThreads>(sum, of_warps);
  if (threadIdx.x == 0) blocks[blockIdx.x] = sum;
}

/// out[0] += the blocks in ascending order: one warp fetches, every lane adds the same.
__global__ void __launch_bounds__(32)
    join_blocks(const double* blocks, std::int64_t count, double* out) {
  const std::int64_t lane = threadIdx.x;
  double total = 0;
  double ahead = lane < count ? blocks[lane] : 0;
  for (std::int64_t begin = 0; begin < count; begin += 32) {
    const double now = ahead;
    const std::int64_t next = begin + 32 + lane;
    ahead = next < count ? blocks[next] : 0;
    const int left = static_cast<int>(std::min(count - begin, std::int64_t{32}));
    for (int i = 0; i < left; ++i) total += __shfl_sync(0xffffffffu, now, i);
  }
  if (lane == 0) out[0] += total;
}

void sum(const KernelCtx& ctx, const Sum& op, const View& workspace) {
  const std::int64_t n = op.x.numel(), count = ceil_div(n, Sum::kBlock);
  if (count == 0) return;
  auto* const blocks = workspace.as<double>();
  const Grid grid{static_cast<unsigned>(count), kSumThreads};
  if (op.x.dtype == DType::f64) {
    launch_grid(ctx, grid, sum_blocks<double>, op.x.as<double>(), n, blocks);
  } else {
    launch_grid(ctx, grid, sum_blocks<float>, op.x.as<float>(), n, blocks);
  }
  launch_grid(ctx, {1u, 32u}, join_blocks, blocks, count, op.out.as<double>());
}

}  // namespace

void add_sum_rows(std::vector<KernelRow>& rows) { rows.push_back(row_of<Sum, sum>()); }

}  // namespace llmtrain::kernels::cuda
