#pragma once
/// The online softmax of both forward kernels on tensor cores, whose rows are M times 16 queries of
/// a warp and whose columns N times 8 keys of a tile.

#include <limits>

#include "kernels/cuda/attention_tensor.cuh"

namespace llmtrain::kernels::cuda {

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <class T>
struct ForwardMatrices {
  Rows<const T> q, k, v;
  Results<T> out;
  float* lse;
};

/// Per row of a thread (m-tile, half): the maximum in units of log 2, and this thread's part of the
/// sum of probabilities.
template <int M>
struct Statistics {
  float max[M][2], sum[M][2];
};

/// Before any key: nothing, or the sink alone.
template <int M>
__device__ __forceinline__ void begin(const AttentionArgs<float>& args, int head,
                                      Statistics<M>& rows) {
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    const bool sink = args.sink != nullptr;
    rows.max[r / 2][r % 2] = sink ? args.sink_of(head) * kLog2e : kNothing;
    rows.sum[r / 2][r % 2] = sink && lane_of_warp() % 4 == 0 ? 1 : 0;
  }
}

/// Scores of hidden keys to -inf; with kExtras all scores to units of log 2.
template <bool kExtras, int M, int N>
__device__ __forceinline__ void adjust(const TensorHead<kExtras>& head, int sequence,
                                       int first_query, int first_key, bool masked,
                                       FragmentC (&s)[M][N]) {
  if (!kExtras && !masked) return;
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
  KeyRange range[M][2];
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    range[r / 2][r % 2] = head.args.range(sequence, first_query + r * 8 + g);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int position = head.args.position(sequence, first_key + n * 8 + 2 * t + c);
#pragma unroll
      for (int r = 0; r < 2 * M; ++r) {
        float& x = s[r / 2][n].x[r % 2 * 2 + c];
        const KeyRange& seen = range[r / 2][r % 2];
        float slope;
        if constexpr (kExtras) x = head.score(x, seen.last, position, slope);
        if (!seen.contains(position)) x = kNothing;
      }
    }
  }
}

/// Dropped probabilities to zero.
template <int M, int N>
__device__ __forceinline__ void drop(const TensorHead<true>& head, int sequence, int first_query,
                                     int first_key, FragmentC (&p)[M][N]) {
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int key = first_key + n * 8 + 2 * t;
    const int first = head.args.position(sequence, key);
    const int second = head.args.position(sequence, key + 1);
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
      const KeyRange range = head.args.range(sequence, first_query + r * 8 + g);
      bool kept[2];
      head.keeps(range.last, first, second, kept);
      for (int c = 0; c < 2; ++c) {
        if (!kept[c]) p[r / 2][n].x[r % 2 * 2 + c] = 0;
      }
    }
  }
}

/// Scores, of which `factor` makes units of log 2, to probabilities relative to the maximum so far;
/// the sums of old are turned to the same. Says whether any row of the warp has a new maximum, to
/// which earlier results are turned by rescale() and `decay`.
template <int M, int N>
__device__ __forceinline__ bool probabilities(float factor, FragmentC (&s)[M][N],
                                              Statistics<M>& rows, float (&decay)[M][2]) {
  bool moved = false;
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    const int m = r / 2, half = r % 2;
    float max = kNothing;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      max = fmaxf(max, fmaxf(s[m][n].x[2 * half], s[m][n].x[2 * half + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    const float old = rows.max[m][half];
    max = fmaxf(old, max * factor);
    rows.max[m][half] = max;
    // A row that has seen nothing yet: any finite number keeps exp2(-inf - max) at zero.
    const float safe = max == kNothing ? 0 : max;
    decay[m][half] = exp2_fast(old - safe);
    moved |= old != max;
    float sum = rows.sum[m][half] * decay[m][half];
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& x = s[m][n].x[2 * half + c];
        x = exp2_fast(fmaf(x, factor, -safe));
        sum += x;
      }
    }
    rows.sum[m][half] = sum;
  }
  // Late tiles seldom move a maximum.
  return __any_sync(~0u, moved);
}

template <int M, int D>
__device__ __forceinline__ void rescale(const float (&decay)[M][2], FragmentC (&out)[M][D]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (FragmentC& c : out[m]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c.x[i] *= decay[m][i / 2];
    }
  }
}

/// Writes what rows `row` and on of a tile have become, over `tile`, of which no other warp uses
/// these rows.
template <int kDim, class T, int M>
__device__ __forceinline__ void finish(const AttentionArgs<float>& args,
                                       const ForwardMatrices<T>& m, int sequence, int head,
                                       int first_query, T* tile, int row, const Statistics<M>& rows,
                                       const FragmentC (&out)[M][kDim / 8]) {
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
  float factor[M][2];
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    float sum = rows.sum[r / 2][r % 2];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    factor[r / 2][r % 2] = sum == 0 ? 0 : args.kept / sum;
    const int i = first_query + r * 8 + g;
    if (t == 0 && i < args.tq) {
      m.lse[args.statistic(sequence, head, i)] = fmaf(rows.max[r / 2][r % 2], kLn2, logf(sum));
    }
  }
#pragma unroll
  for (int i = 0; i < M; ++i) {
    const ResultRows to{static_cast<std::int64_t>(sequence) * args.tq,
                        static_cast<std::int64_t>(head) * args.head_dim, first_query + 16 * i,
                        args.tq, args.head_dim};
    write_results<kDim>(m.out, to, tile, row + 16 * i, out[i], factor[i][0], factor[i][1]);
  }
}

}  // namespace llmtrain::kernels::cuda
