#pragma once
/// The gradient of queries on tensor cores: a warp has 32 queries (16 where registers have no room
/// for more), and the block walks over the keys. Scores, their gradients and dq stay in registers.

#include "kernels/cuda/attention_tensor_gradient.cuh"

namespace llmtrain::kernels::cuda {

namespace query_tiles {

constexpr int kThreads = 128;
template <int kDim>
constexpr int kM = kDim <= 128 ? 2 : 1;  // times 16 queries: of a warp
template <int kDim>
constexpr int kRows = 16 * kM<kDim>;
template <int kDim>
constexpr int kQueries = kRows<kDim>* kThreads / 32;  // of a block

/// Of a tile: what registers have room for beside kRows x kDim sums.
template <int kDim>
constexpr int kKeys = kDim <= 64 ? 64 : 32;

/// Queries, gradient of the output; keys and values twice: 128 KiB at most.
template <int kDim>
constexpr std::size_t kShared = sizeof(bf16) * (2 * kQueries<kDim> + 4 * kKeys<kDim>)*kDim;

/// s = q k^T of this warp's rows and a tile's.
template <int kDim, class T>
__device__ __forceinline__ void product(const T* q, const T* k,
                                        FragmentC (&s)[kM<kDim>][kKeys<kDim> / 8]) {
  using Tile = TensorTile<T, kDim>;
  const int row = warp_of_block() * kRows<kDim>;
#pragma unroll
  for (int m = 0; m < kM<kDim>; ++m) {
#pragma unroll
    for (int n = 0; n < kKeys<kDim> / 8; ++n) s[m][n] = {};
  }
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) {
    FragmentA a[kM<kDim>];
#pragma unroll
    for (int m = 0; m < kM<kDim>; ++m) a[m] = Tile::a(q, row + 16 * m, d);
#pragma unroll
    for (int n = 0; n < kKeys<kDim> / 16; ++n) {
      const Matrices b = Tile::b(k, n * 16, d);
#pragma unroll
      for (int m = 0; m < kM<kDim>; ++m) {
        mma<T>(s[m][2 * n], a[m], first_b(b));
        mma<T>(s[m][2 * n + 1], a[m], second_b(b));
      }
    }
  }
}

/// dq += ds k
template <int kDim, class T>
__device__ __forceinline__ void accumulate(const FragmentC (&ds)[kM<kDim>][kKeys<kDim> / 8],
                                           const T* k, FragmentC (&dq)[kM<kDim>][kDim / 8]) {
  using Tile = TensorTile<T, kDim>;
#pragma unroll
  for (int j = 0; j < kKeys<kDim> / 16; ++j) {
    FragmentA a[kM<kDim>];
#pragma unroll
    for (int m = 0; m < kM<kDim>; ++m) a[m] = a_of<T>(ds[m][2 * j], ds[m][2 * j + 1]);
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const Matrices b = Tile::b_transposed(k, j * 16, n);
#pragma unroll
      for (int m = 0; m < kM<kDim>; ++m) {
        mma<T>(dq[m][2 * n], a[m], first_b(b));
        mma<T>(dq[m][2 * n + 1], a[m], second_b(b));
      }
    }
  }
}

/// Longer than a function should be: the order of copies, waits and products is what it is about.
template <class T, int kDim, bool kExtras>
__global__ void __launch_bounds__(kThreads, 2)
    queries_kernel(AttentionArgs<float> args, GradientMatrices<T> m) {
  using Tile = TensorTile<T, kDim>;
  constexpr int kTile = kKeys<kDim>;
  T* const q = dynamic_shared<T>();
  T* const dout = q + kQueries<kDim> * kDim;
  T* const k = dout + kQueries<kDim> * kDim;  // twice
  T* const v = k + 2 * kTile * kDim;          // twice

  // As in the forward: the heads of a group follow each other, late queries begin first.
  const int tiles = (args.tq + kQueries<kDim> - 1) / kQueries<kDim>;
  int n = static_cast<int>(blockIdx.x);
  const int in_group = n % args.per_group();
  n /= args.per_group();
  const int first = (tiles - 1 - n % tiles) * kQueries<kDim>;
  n /= tiles;
  const int group = n % args.kv_heads, s = n / args.kv_heads;
  const int h = group * args.per_group() + in_group;
  const int head_dim = args.head_dim;
  const std::int64_t q_row = static_cast<std::int64_t>(s) * args.tq;
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;
  const std::int64_t at_q = static_cast<std::int64_t>(h) * head_dim;
  const std::int64_t at_k = static_cast<std::int64_t>(group) * head_dim;
  const auto stage_keys = [&](int tile, int buffer) {
    Tile::template stage<kTile, kThreads>(k + buffer * kTile * kDim, m.k.row(k_row) + at_k,
                                          m.k.stride, tile * kTile, args.tk, head_dim);
    Tile::template stage<kTile, kThreads>(v + buffer * kTile * kDim, m.v.row(k_row) + at_k,
                                          m.v.stride, tile * kTile, args.tk, head_dim);
  };

  const TensorHead<kExtras> head(args, s, h);
  const int first_query = first + warp_of_block() * kRows<kDim>;  // of this warp
  TileWalk<Side::keys, kTile, kQueries<kDim>, kRows<kDim>, float> walk(args, s, first, first_query);
  auto step = walk.next(0);
  Tile::template stage<kQueries<kDim>, kThreads>(q, m.q.row(q_row) + at_q, m.q.stride, first,
                                                 args.tq, head_dim);
  Tile::template stage<kQueries<kDim>, kThreads>(dout, m.dout.row(q_row) + at_q, m.dout.stride,
                                                 first, args.tq, head_dim);
  if (!walk.done(step)) stage_keys(step.tile, 0);
  commit_copies();
  RowStatistics<kM<kDim>> rows;
  load(args, m, s, h, first_query, rows);
  FragmentC dq[kM<kDim>][kDim / 8] = {};
  for (int buffer = 0; !walk.done(step); buffer ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is there, the one before is used up
    const auto next = walk.next(step.tile + 1);
    if (!walk.done(next)) stage_keys(next.tile, buffer ^ 1);
    commit_copies();
    if (step.some) {
      FragmentC scores[kM<kDim>][kTile / 8], dp[kM<kDim>][kTile / 8];
      product<kDim>(q, k + buffer * kTile * kDim, scores);
      product<kDim>(dout, v + buffer * kTile * kDim, dp);
      const auto range_of = [&](int r) {
        return args.range(s, first_query + r * 8 + lane_of_warp() / 4);
      };
      const auto positions_of = [&](int column) {
        const int key = step.tile * kTile + column;
        return Pack<int, 2>{{args.position(s, key), args.position(s, key + 1)}};
      };
      differentiate_rows(head, !step.all, range_of, positions_of, rows, scores, dp);
      accumulate<kDim>(dp, k + buffer * kTile * kDim, dq);
    }
    step = next;
  }
  wait_for_copies<0>();
  __syncthreads();  // where there are no keys the queries may still be under way
  const int row = warp_of_block() * kRows<kDim>;
#pragma unroll
  for (int i = 0; i < kM<kDim>; ++i) {
    const ResultRows to{q_row, at_q, first_query + 16 * i, args.tq, head_dim};
    write_results<kDim>(m.dq, to, q, row + 16 * i, dq[i], args.scale, args.scale);
  }
}

template <class T, int kDim>
void gradient(const KernelCtx& ctx, const AttentionArgs<float>& args,
              const GradientMatrices<T>& m) {
  const std::int64_t blocks = ceil_div(args.tq, kQueries<kDim>) * args.sequences * args.heads;
  const auto kernel =
      has_extras(args) ? queries_kernel<T, kDim, true> : queries_kernel<T, kDim, false>;
  allow_shared(kernel, kShared<kDim>);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kThreads, kShared<kDim>}, kernel, args, m);
}

}  // namespace query_tiles

}  // namespace llmtrain::kernels::cuda
