// Gradient norms and the decision that follows from them, in the reference's order of summation, so
// that they have its bits.
#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/list.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rules/workspace.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// A thread sums neighbouring lanes of a block, whose elements it reads 16 bytes at a time.
template <class T>
constexpr int kBlockThreads = SquaredNorm::kLanes / kPack<T>;
/// A thread block sums the blocks of a chunk.
template <class T>
constexpr int kNormThreads = static_cast<int>(kListChunk / SquaredNorm::kBlock) * kBlockThreads<T>;
/// A thread block of a later level joins two values per thread.
constexpr std::int64_t kJoin = kJoinedValues;
constexpr int kJoinThreads = static_cast<int>(kJoin) / 2;

/// Adds by pairs of neighbours over `lanes` lanes; every lane gets the sum. A pair's sum does not
/// depend on which of the two adds.
template <class W>
__device__ W join_lanes(W sum, int first, int lanes) {
  for (int step = first; step < lanes; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

/// The tree over the thread block's warps, of each of which every lane holds the sum. Thread 0 gets
/// the result.
template <int threads>
__device__ double join_warps(double sum) {
  constexpr int kWarps = threads / 32;
  static_assert((kWarps & (kWarps - 1)) == 0 && kWarps <= 32);
  __shared__ double of_warp[kWarps];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return join_lanes(of_warp[threadIdx.x % kWarps], 1, kWarps);
}

/// The contract's tree over the lanes of a block, of which each of its threads has V neighbours: it
/// begins with lanes 8 apart, which are other threads'. All get the sum.
template <class T, int V>
__device__ T join_block(T (&lanes)[V]) {
#pragma unroll
  for (int step = SquaredNorm::kLanes / 2; step >= V; step /= 2) {
#pragma unroll
    for (int i = 0; i < V; ++i) lanes[i] += __shfl_xor_sync(0xffffffffu, lanes[i], step / V);
  }
#pragma unroll
  for (int step = V / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

/// sums[c] = sum of the squares of chunk c. A missing element or block counts as +0, which no sum
/// of squares notices: its bits stay.
template <class T>
__global__ void __launch_bounds__(kNormThreads<T>)
    square_chunks(List<SquaredNorm::Row> list, double* sums) {
  constexpr int kLanes = SquaredNorm::kLanes, kThreads = kBlockThreads<T>, V = kPack<T>;
  constexpr std::int64_t kBlock = SquaredNorm::kBlock;
  const SquaredNorm::Row& row = list.row_at(blockIdx.x);
  const T* const g = static_cast<const T*>(row.gradient);
  const std::int64_t block =
      (blockIdx.x - row.place.first_chunk) * (kListChunk / kBlock) + threadIdx.x / kThreads;
  const std::int64_t first = block * kBlock + threadIdx.x % kThreads * V;
  const std::int64_t end = std::min(row.place.numel, (block + 1) * kBlock);
  T lanes[V] = {};
  if (end == (block + 1) * kBlock &&
      reinterpret_cast<std::uintptr_t>(g) % sizeof(Pack<T, V>) == 0) {
#pragma unroll 8
    for (int step = 0; step < kBlock / kLanes; ++step) {
      const Pack<T, V> pack = load_pack<V>(g + first + step * kLanes);
#pragma unroll
      for (int i = 0; i < V; ++i) lanes[i] += pack.x[i] * pack.x[i];
    }
  } else {
    for (std::int64_t e = first; e < end; e += kLanes) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (e + i < end) lanes[i] += g[e + i] * g[e + i];
      }
    }
  }
  const double joined =
      join_warps<kNormThreads<T>>(join_lanes(static_cast<double>(join_block(lanes)), kThreads, 32));
  if (threadIdx.x == 0) sums[blockIdx.x] = joined;
}

/// Sum of values [run kJoin, (run + 1) kJoin) of `count`. Thread 0 gets it.
__device__ double join_run(const double* values, std::int64_t count, std::int64_t run) {
  const std::int64_t first = run * kJoin + 2 * static_cast<std::int64_t>(threadIdx.x);
  const double a = first < count ? values[first] : 0;
  const double b = first + 1 < count ? values[first + 1] : 0;
  return join_warps<kJoinThreads>(join_lanes(a + b, 1, 32));
}

/// Sum of all values, by one thread block. `sums` has room for one of every kJoin and may begin
/// where `values` do: a sum lies where all have read. Thread 0 gets it; 0 for none.
__device__ double join_all(const double* values, std::int64_t count, double* sums) {
  double sum = 0;
  for (; count > 0; values = sums) {
    const std::int64_t runs = ceil_div(count, kJoin);
    for (std::int64_t run = 0; run < runs; ++run) {
      sum = join_run(values, count, run);
      __syncthreads();  // all have read: where sums are joined, this overwrites one of them
      if (threadIdx.x == 0) sums[run] = sum;
    }
    __syncthreads();
    count = runs == 1 ? 0 : runs;
  }
  return sum;
}

/// out[i] = sum over the chunks of gradient i, which is block i's.
__global__ void __launch_bounds__(kJoinThreads)
    join_chunks(List<SquaredNorm::Row> list, double* sums, double* out) {
  const ListPlace place = list.row(blockIdx.x).place;
  double* const own = sums + place.first_chunk;
  const double sum = join_all(own, list_chunks(place.numel), own);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

/// One thread block: there are as many squares as parameters have names. `sums` has room for one
/// of every kJoin. Only the numbers of `op` are read.
__global__ void __launch_bounds__(kJoinThreads)
    decide(DecideUpdate op, const double* squares, std::int64_t count, double* sums,
           const double* loss_sum, std::int64_t num_losses, const StepScalars* scalars,
           UpdateDecision* decision) {
  const double sum = join_all(squares, count, sums);
  if (threadIdx.x != 0) return;
  op.decide(sum, num_losses > 0 ? loss_sum[0] : 0, num_losses > 1 ? loss_sum[1] : 0,
            scalars == nullptr ? op.lr : scalars->lr,
            scalars == nullptr ? op.loss_limit : scalars->loss_limit, *decision);
}

/// A thread per gradient: it has few runs.
__global__ void __launch_bounds__(kJoinThreads)
    join_gradients(const double* runs, const std::int32_t* levels, const std::int32_t* first,
                   std::int64_t count, double* out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x;
  if (i >= count) return;
  out[i] = JoinSquaredNorms::join(runs + first[i], levels + first[i], first[i + 1] - first[i]);
}

void squared_norm(const KernelCtx& ctx, const SquaredNorm& op, const View& workspace) {
  const List<SquaredNorm::Row> list(op, op.gradients);
  auto* const sums = workspace.as<double>();
  if (op.dtype() == DType::f64) {
    launch_grid(ctx, list.grid(kNormThreads<double>), square_chunks<double>, list, sums);
  } else {
    launch_grid(ctx, list.grid(kNormThreads<float>), square_chunks<float>, list, sums);
  }
  launch_grid(ctx, {static_cast<unsigned>(list.count), kJoinThreads}, join_chunks, list, sums,
              op.out.as<double>());
}

void join_squared_norms(const KernelCtx& ctx, const JoinSquaredNorms& op, const View&) {
  const std::int64_t count = op.out.numel();
  if (count == 0) return;
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(count, kJoinThreads)), kJoinThreads},
              join_gradients, op.runs.as<double>(), op.levels.as<std::int32_t>(),
              op.first.as<std::int32_t>(), count, op.out.as<double>());
}

void decide_update(const KernelCtx& ctx, const DecideUpdate& op, const View& workspace) {
  launch_grid(ctx, {1, kJoinThreads}, decide, op, op.squares.as<double>(), op.squares.numel(),
              workspace.as<double>(), op.loss_sum.as<double>(), op.num_losses(),
              op.scalars.as<StepScalars>(), op.decision.as<UpdateDecision>());
}

}  // namespace

void add_gradient_norm_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, squared_norm>());
  rows.push_back(row_of<JoinSquaredNorms, join_squared_norms>());
  rows.push_back(row_of<DecideUpdate, decide_update>());
}

}  // namespace llmtrain::kernels::cuda
