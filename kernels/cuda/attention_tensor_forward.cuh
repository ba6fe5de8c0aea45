#pragma once
/// Attention of bf16 or fp16 (T) on tensor cores: FlashAttention-2 with mma.sync. A warp has 32
/// queries, so that each fragment of keys and values serves two products; 16 where registers have
/// no room for more.

#include <limits>

#include "kernels/cuda/attention_tensor.cuh"

namespace llmtrain::kernels::cuda {

namespace forward_tiles {

constexpr int kThreads = 128;
constexpr int kKeys = 64;  // of a tile
template <int kDim>
constexpr int kM = kDim <= 128 ? 2 : 1;  // times 16 queries: of a warp
template <int kDim>
constexpr int kRows = 16 * kM<kDim>;
template <int kDim>
constexpr int kQueries = kRows<kDim>* kThreads / 32;  // of a block
constexpr float kNothing = -std::numeric_limits<float>::infinity();

template <int kDim>
constexpr std::size_t kForwardShared = sizeof(bf16) * (kQueries<kDim> + 2 * kKeys) * kDim;

template <class T>
struct ForwardMatrices {
  Rows<const T> q, k, v;
  Rows<T> out;
  float* lse;
};

template <int kDim, class T>
__device__ __forceinline__ void scores(const T* q, const T* k,
                                       FragmentC (&s)[kM<kDim>][kKeys / 8]) {
  using Tile = TensorTile<T, kDim>;
  const int row = warp_of_block() * kRows<kDim>;
#pragma unroll
  for (int m = 0; m < kM<kDim>; ++m) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) s[m][n] = {};
  }
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) {
    FragmentA a[kM<kDim>];
#pragma unroll
    for (int m = 0; m < kM<kDim>; ++m) a[m] = Tile::a(q, row + 16 * m, d);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      const Matrices b = Tile::b(k, n * 16, d);
#pragma unroll
      for (int m = 0; m < kM<kDim>; ++m) {
        mma<T>(s[m][2 * n], a[m], first_b(b));
        mma<T>(s[m][2 * n + 1], a[m], second_b(b));
      }
    }
  }
}

/// Per row of a thread (m-tile, half): the maximum in units of log 2, and this thread's part of the
/// sum of probabilities.
template <int M>
struct Statistics {
  float max[M][2], sum[M][2];
};

/// Scores of hidden keys to -inf; with kExtras all scores to units of log 2.
template <bool kExtras, int M>
__device__ __forceinline__ void adjust(const TensorHead<kExtras>& head, int sequence,
                                       int first_query, int first_key, bool masked,
                                       FragmentC (&s)[M][kKeys / 8]) {
  if (!kExtras && !masked) return;
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
  KeyRange range[M][2];
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    range[r / 2][r % 2] = head.args.range(sequence, first_query + r * 8 + g);
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
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
template <int M>
__device__ __forceinline__ void drop(const TensorHead<true>& head, int sequence, int first_query,
                                     int first_key, FragmentC (&p)[M][kKeys / 8]) {
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
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
/// the sums of old are turned to the same.
template <int kDim>
__device__ __forceinline__ void probabilities(float factor, FragmentC (&s)[kM<kDim>][kKeys / 8],
                                              Statistics<kM<kDim>>& rows,
                                              FragmentC (&out)[kM<kDim>][kDim / 8]) {
  float decay[kM<kDim>][2];
  bool moved = false;
#pragma unroll
  for (int r = 0; r < 2 * kM<kDim>; ++r) {
    const int m = r / 2, half = r % 2;
    float max = kNothing;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
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
    for (int n = 0; n < kKeys / 8; ++n) {
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
  if (!__any_sync(~0u, moved)) return;
#pragma unroll
  for (int m = 0; m < kM<kDim>; ++m) {
#pragma unroll
    for (FragmentC& c : out[m]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c.x[i] *= decay[m][i / 2];
    }
  }
}

template <int kDim, class T>
__device__ __forceinline__ void values(const FragmentC (&p)[kM<kDim>][kKeys / 8], const T* v,
                                       FragmentC (&out)[kM<kDim>][kDim / 8]) {
  using Tile = TensorTile<T, kDim>;
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    FragmentA a[kM<kDim>];
#pragma unroll
    for (int m = 0; m < kM<kDim>; ++m) a[m] = a_of<T>(p[m][2 * k], p[m][2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const Matrices b = Tile::b_transposed(v, k * 16, n);
#pragma unroll
      for (int m = 0; m < kM<kDim>; ++m) {
        mma<T>(out[m][2 * n], a[m], first_b(b));
        mma<T>(out[m][2 * n + 1], a[m], second_b(b));
      }
    }
  }
}

/// `q` becomes the place of the result.
template <int kDim, class T>
__device__ __forceinline__ void finish(const AttentionArgs<float>& args,
                                       const ForwardMatrices<T>& m, int sequence, int head,
                                       int first_query, T* q, Statistics<kM<kDim>>& rows,
                                       const FragmentC (&out)[kM<kDim>][kDim / 8]) {
  using Tile = TensorTile<T, kDim>;
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
  const int row = warp_of_block() * kRows<kDim>;
  float factor[kM<kDim>][2];
#pragma unroll
  for (int r = 0; r < 2 * kM<kDim>; ++r) {
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
  for (int m = 0; m < kM<kDim>; ++m) {
    Tile::put(q, row + 16 * m, out[m], factor[m][0], factor[m][1]);
  }
  __syncwarp();
  Tile::template flush<kRows<kDim>>(q, row,
                                    m.out.row(static_cast<std::int64_t>(sequence) * args.tq) +
                                        static_cast<std::int64_t>(head) * args.head_dim,
                                    m.out.stride, first_query, args.tq, args.head_dim);
}

/// Longer than a function should be: the order of copies, waits and products is what it is about.
template <class T, int kDim, bool kExtras>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(AttentionArgs<float> args, ForwardMatrices<T> m) {
  using Tile = TensorTile<T, kDim>;
  T* const q = dynamic_shared<T>();
  T* const k = q + kQueries<kDim> * kDim;
  T* const v = k + kKeys * kDim;

  // The heads of a group and the tiles of a sequence follow each other, so that keys and values
  // stay in L2; late queries, which see most keys, begin first.
  const int tiles = (args.tq + kQueries<kDim> - 1) / kQueries<kDim>;
  int n = static_cast<int>(blockIdx.x);
  const int in_group = n % args.per_group();
  n /= args.per_group();
  const int first = (tiles - 1 - n % tiles) * kQueries<kDim>;
  n /= tiles;
  const int group = n % args.kv_heads, s = n / args.kv_heads;
  const int h = group * args.per_group() + in_group;
  const int head_dim = args.head_dim;
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;
  const T* const q_rows =
      m.q.row(static_cast<std::int64_t>(s) * args.tq) + static_cast<std::int64_t>(h) * head_dim;
  const T* const k_rows = m.k.row(k_row) + static_cast<std::int64_t>(group) * head_dim;
  const T* const v_rows = m.v.row(k_row) + static_cast<std::int64_t>(group) * head_dim;

  const TensorHead<kExtras> head(args, s, h);
  const int first_query = first + warp_of_block() * kRows<kDim>;  // of this warp
  Statistics<kM<kDim>> rows;
  FragmentC out[kM<kDim>][kDim / 8] = {};
#pragma unroll
  for (int r = 0; r < 2 * kM<kDim>; ++r) {
    const bool sink = args.sink != nullptr;
    rows.max[r / 2][r % 2] = sink ? args.sink_of(h) * kLog2e : kNothing;
    rows.sum[r / 2][r % 2] = sink && lane_of_warp() % 4 == 0 ? 1 : 0;
  }

  TileWalk<Side::keys, kKeys, kQueries<kDim>, kRows<kDim>, float> walk(args, s, first, first_query);
  auto step = walk.next(0);
  Tile::template stage<kQueries<kDim>, kThreads>(q, q_rows, m.q.stride, first, args.tq, head_dim);
  if (!walk.done(step)) {
    Tile::template stage<kKeys, kThreads>(k, k_rows, m.k.stride, step.tile * kKeys, args.tk,
                                          head_dim);
  }
  commit_copies();
  while (!walk.done(step)) {
    const int first_key = step.tile * kKeys;
    wait_for_copies<0>();
    __syncthreads();  // the keys are there, the values before are used up
    Tile::template stage<kKeys, kThreads>(v, v_rows, m.v.stride, first_key, args.tk, head_dim);
    commit_copies();
    const bool seen = step.some;
    FragmentC p[kM<kDim>][kKeys / 8];
    if (seen) {
      scores<kDim>(q, k, p);
      adjust(head, s, first_query, first_key, !step.all, p);
    }
    wait_for_copies<0>();
    __syncthreads();  // the values are there, the keys are used up
    step = walk.next(step.tile + 1);
    if (!walk.done(step)) {
      Tile::template stage<kKeys, kThreads>(k, k_rows, m.k.stride, step.tile * kKeys, args.tk,
                                            head_dim);
    }
    commit_copies();
    if (seen) {
      probabilities<kDim>(kExtras ? 1 : head.factor, p, rows, out);
      if constexpr (kExtras) {
        if (args.drops) drop(head, s, first_query, first_key, p);
      }
      values<kDim>(p, v, out);
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // where there are no keys the queries may still be under way
  finish<kDim>(args, m, s, h, first_query, q, rows, out);
}

}  // namespace forward_tiles

template <class T, int kDim>
void tensor_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  using namespace forward_tiles;
  const auto args = attention_args<float>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0 || args.tq == 0) return;
  find_bounds(ctx, args);
  const ForwardMatrices<T> m{Rows<const T>(op.q), Rows<const T>(op.k), Rows<const T>(op.v),
                             Rows<T>(op.out), static_cast<float*>(op.lse.data)};
  const std::int64_t blocks = ceil_div(args.tq, kQueries<kDim>) * args.sequences * args.heads;
  const auto kernel =
      has_extras(args) ? forward_kernel<T, kDim, true> : forward_kernel<T, kDim, false>;
  allow_shared(kernel, kForwardShared<kDim>);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kThreads, kForwardShared<kDim>}, kernel, args,
              m);
}

}  // namespace llmtrain::kernels::cuda
