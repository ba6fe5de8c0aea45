#pragma once
/// Sums of squares over runs of numbers, in the order of kernels::SquaredNorm: a thread block per
/// chunk, and then the chunks of long runs.

#include "kernels/cuda/map.cuh"
#include "kernels/cuda/squares.cuh"

namespace llmtrain::kernels::cuda {

/// sums[c] = sum of the squares of chunk c, of which each run of `each` numbers has `chunks`.
template <class Numbers>
__global__ void __launch_bounds__(kSquareThreads<typename Numbers::Type>)
    square_runs(Numbers numbers, std::int64_t each, std::int64_t chunks, double* sums) {
  const std::int64_t run = blockIdx.x / chunks;
  const std::int64_t first = run * each + (blockIdx.x - run * chunks) * kListChunk;
  const double sum =
      squares_of_chunk(numbers, first, std::min((run + 1) * each, first + kListChunk));
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Chunks of a run that a single thread joins: of runs that have so few there are many.
inline constexpr std::int64_t kFewChunks = 32;

template <int threads>
__global__ void __launch_bounds__(threads)
    join_few_chunks(const double* sums, std::int64_t runs, std::int64_t chunks, double* out) {
  const std::int64_t run = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  if (run >= runs) return;
  SubtreeSums joined;
  for (std::int64_t c = 0; c < chunks; ++c) joined.add(sums[run * chunks + c]);
  out[run] = joined.joined();
}

/// A thread block per run.
template <int threads>
__global__ void __launch_bounds__(threads)
    join_many_chunks(double* sums, std::int64_t chunks, double* out) {
  static_assert(threads == kJoinThreads);
  double* const own = sums + blockIdx.x * chunks;
  const double sum = join_all(own, chunks, own);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

/// out[k] = sum over numbers [k each, (k + 1) each). `workspace` has chunk_sums_bytes().
template <class Numbers>
void sum_runs(const KernelCtx& ctx, const Numbers& numbers, std::int64_t each, const View& out,
              const View& workspace) {
  const std::int64_t runs = out.numel(), chunks = std::max<std::int64_t>(1, list_chunks(each));
  auto* const to = out.as<double>();
  auto* const sums = chunks > 1 ? workspace.as<double>() : to;
  launch_grid(ctx, {static_cast<unsigned>(runs * chunks), kSquareThreads<typename Numbers::Type>},
              square_runs<Numbers>, numbers, each, chunks, sums);
  if (chunks == 1) return;
  if (chunks <= kFewChunks) {
    launch_grid(ctx, {static_cast<unsigned>(ceil_div(runs, kMapThreads)), kMapThreads},
                join_few_chunks<kMapThreads>, sums, runs, chunks, to);
  } else {
    launch_grid(ctx, {static_cast<unsigned>(runs), kJoinThreads}, join_many_chunks<kJoinThreads>,
                sums, chunks, to);
  }
}

}  // namespace llmtrain::kernels::cuda
