#pragma once
/// Sums of squares by thread blocks, in the order of kernels::SquaredNorm.

#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/rules/workspace.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels::cuda {

/// A thread sums neighbouring lanes of a block, whose elements it reads 16 bytes at a time.
template <class T>
constexpr int kBlockThreads = SquaredNorm::kLanes / kPack<T>;
/// A thread block sums the blocks of a chunk.
template <class T>
constexpr int kSquareThreads =
    static_cast<int>(kListChunk / SquaredNorm::kBlock) * kBlockThreads<T>;

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

/// Numbers that lie in memory as they are.
template <class T>
struct PlainNumbers {
  using Type = T;
  const T* data;
  template <int V>
  __device__ Pack<T, V> load(std::int64_t i) const {
    return load_pack<V>(data + i);
  }
  /// Whether load() may take whole packs from number i on.
  __device__ bool takes_packs(std::int64_t i) const {
    return reinterpret_cast<std::uintptr_t>(data + i) % 16 == 0;
  }
};

/// Sum of the squares of `numbers` [first_of_chunk, last), at most a chunk. Thread 0 gets it. A
/// missing element or block counts as +0, which no sum of squares notices: its bits stay.
template <class Numbers, class T = typename Numbers::Type>
__device__ double squares_of_chunk(const Numbers& numbers, std::int64_t first_of_chunk,
                                   std::int64_t last) {
  constexpr int kLanes = SquaredNorm::kLanes, kThreads = kBlockThreads<T>, V = kPack<T>;
  constexpr std::int64_t kBlock = SquaredNorm::kBlock;
  const std::int64_t begin = first_of_chunk + threadIdx.x / kThreads * kBlock;
  const std::int64_t first = begin + threadIdx.x % kThreads * V;
  const std::int64_t end = std::min(last, begin + kBlock);
  T lanes[V] = {};
  if (end == begin + kBlock && numbers.takes_packs(first_of_chunk)) {
#pragma unroll 8
    for (int step = 0; step < kBlock / kLanes; ++step) {
      const Pack<T, V> pack = numbers.template load<V>(first + step * kLanes);
#pragma unroll
      for (int i = 0; i < V; ++i) lanes[i] += pack.x[i] * pack.x[i];
    }
  } else {
    for (std::int64_t e = first; e < end; e += kLanes) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (e + i >= end) continue;
        const T x = numbers.template load<1>(e + i).x[0];
        lanes[i] += x * x;
      }
    }
  }
  return join_warps<kSquareThreads<T>>(
      join_lanes(static_cast<double>(join_block(lanes)), kThreads, 32));
}

/// A thread block of a later level joins two values per thread.
inline constexpr std::int64_t kJoin = kJoinedValues;
inline constexpr int kJoinThreads = static_cast<int>(kJoin) / 2;

/// Sum of values [run kJoin, (run + 1) kJoin) of `count`. Thread 0 gets it.
__device__ inline double join_run(const double* values, std::int64_t count, std::int64_t run) {
  const std::int64_t first = run * kJoin + 2 * static_cast<std::int64_t>(threadIdx.x);
  const double a = first < count ? values[first] : 0;
  const double b = first + 1 < count ? values[first + 1] : 0;
  return join_warps<kJoinThreads>(join_lanes(a + b, 1, 32));
}

/// Sum of all values, by one thread block. `sums` has room for one of every kJoin and may begin
/// where `values` do: a sum lies where all have read. Thread 0 gets it; 0 for none.
__device__ inline double join_all(const double* values, std::int64_t count, double* sums) {
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

/// Joins the sums of chunks that follow one another, of which the last may be shorter, as
/// JoinSquaredNorms joins runs.
class SubtreeSums {
 public:
  __device__ void add(double sum) {
    for (std::int64_t size = ++chunks_; size % 2 == 0; size /= 2) sum = sums_[--depth_] + sum;
    sums_[depth_++] = sum;
  }
  /// 0 for none.
  __device__ double joined() const {
    double sum = depth_ == 0 ? 0 : sums_[depth_ - 1];
    for (int i = depth_ - 1; i > 0; --i) sum = sums_[i - 1] + sum;
    return sum;
  }

 private:
  double sums_[40];  // of complete subtrees, the largest first
  std::int64_t chunks_ = 0;
  int depth_ = 0;
};

}  // namespace llmtrain::kernels::cuda
