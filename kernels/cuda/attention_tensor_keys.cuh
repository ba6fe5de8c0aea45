#pragma once
/// The gradients of keys and values on tensor cores: a warp has 16 keys, and the block walks over
/// the queries of all heads of its group. Scores are transposed (keys are the rows), so that they,
/// their gradients, dk and dv stay in registers; at 256 columns not both of the latter, which then
/// take a pass each.

#include "kernels/cuda/attention_tensor_gradient.cuh"

namespace llmtrain::kernels::cuda {

namespace key_tiles {

constexpr int kRows = 16;  // of a warp
template <int kDim>
constexpr int kThreads = kDim <= 128 ? 256 : 128;
template <int kDim>
constexpr int kKeys = kThreads<kDim> / 32 * kRows;  // of a block
template <int kDim>
constexpr int kQueries = kDim <= 128 ? 64 : 32;  // of a tile
enum class Pass : std::uint8_t { both, keys, values };

/// Queries, the gradient of the output, and statistics of a tile; twice.
template <class T, int kDim>
struct Stage {
  T q[kQueries<kDim> * kDim], dout[kQueries<kDim> * kDim];
  float lse[kQueries<kDim>], delta[kQueries<kDim>];
};
/// 129 KiB at most.
template <class T, int kDim>
struct SharedKeys {
  T k[kKeys<kDim> * kDim], v[kKeys<kDim> * kDim];
  Stage<T, kDim> stages[2];
};

template <int kDim>
using Scores = FragmentC[kQueries<kDim> / 8];

/// s = a b^T: this warp's rows of keys (values) and a tile's queries (gradients of the output).
template <int kDim, class T>
__device__ __forceinline__ void product(const T* a, const T* b, Scores<kDim>& s) {
  using Tile = TensorTile<T, kDim>;
  const int row = warp_of_block() * kRows;
#pragma unroll
  for (int n = 0; n < kQueries<kDim> / 8; ++n) s[n] = {};
#pragma unroll
  for (int d = 0; d < kDim / 16; ++d) {
    const FragmentA x = Tile::a(a, row, d);
#pragma unroll
    for (int n = 0; n < kQueries<kDim> / 16; ++n) {
      const Matrices y = Tile::b(b, n * 16, d);
      mma<T>(s[2 * n], x, first_b(y));
      mma<T>(s[2 * n + 1], x, second_b(y));
    }
  }
}

/// sums += a b, where a is kQueries<kDim> / 16 fragments.
template <int kDim, class T>
__device__ __forceinline__ void accumulate(const FragmentA (&a)[kQueries<kDim> / 16], const T* b,
                                           FragmentC (&sums)[kDim / 8]) {
  using Tile = TensorTile<T, kDim>;
#pragma unroll
  for (int i = 0; i < kQueries<kDim> / 16; ++i) {
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const Matrices y = Tile::b_transposed(b, i * 16, n);
      mma<T>(sums[2 * n], a[i], first_b(y));
      mma<T>(sums[2 * n + 1], a[i], second_b(y));
    }
  }
}

/// Longer than a function should be: the order of copies, waits and products is what it is about.
template <class T, int kDim, Pass pass, bool kExtras>
__global__ void __launch_bounds__(kThreads<kDim>, 1)
    keys_kernel(AttentionArgs<float> args, GradientMatrices<T> m) {
  using Tile = TensorTile<T, kDim>;
  SharedKeys<T, kDim>& shared = *dynamic_shared<SharedKeys<T, kDim>>();

  // Early keys, which most queries see, begin first.
  const int tiles = (args.tk + kKeys<kDim> - 1) / kKeys<kDim>;
  const int first = static_cast<int>(blockIdx.x) % tiles * kKeys<kDim>;
  const int n = static_cast<int>(blockIdx.x) / tiles;
  const int group = n % args.kv_heads, s = n / args.kv_heads;
  const int head_dim = args.head_dim;
  const std::int64_t q_row = static_cast<std::int64_t>(s) * args.tq;
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;
  const std::int64_t at_k = static_cast<std::int64_t>(group) * head_dim;
  const auto stage_queries = [&](int head, int tile, Stage<T, kDim>& stage) {
    const std::int64_t at_q = static_cast<std::int64_t>(head) * head_dim;
    const int first_query = tile * kQueries<kDim>;
    Tile::template stage<kQueries<kDim>, kThreads<kDim>>(stage.q, m.q.row(q_row) + at_q, m.q.stride,
                                                         first_query, args.tq, head_dim);
    Tile::template stage<kQueries<kDim>, kThreads<kDim>>(
        stage.dout, m.dout.row(q_row) + at_q, m.dout.stride, first_query, args.tq, head_dim);
    const int i = static_cast<int>(threadIdx.x) % kQueries<kDim>;
    const bool real = first_query + i < args.tq;
    const std::int64_t at = real ? args.statistic(s, head, first_query + i) : 0;
    if (threadIdx.x < kQueries<kDim>) copy_async<4>(stage.lse + i, m.lse + at, real);
    if (threadIdx.x >= kQueries<kDim> && threadIdx.x < 2 * kQueries<kDim>) {
      copy_async<4>(stage.delta + i, m.delta + at, real);
    }
  };

  const int first_key = first + warp_of_block() * kRows;  // of this warp
  GroupWalk<kQueries<kDim>, kKeys<kDim>, kRows> walk(args, s, group, first, first_key);
  auto step = walk.next(group * args.per_group(), 0);
  Tile::template stage<kKeys<kDim>, kThreads<kDim>>(shared.k, m.k.row(k_row) + at_k, m.k.stride,
                                                    first, args.tk, head_dim);
  Tile::template stage<kKeys<kDim>, kThreads<kDim>>(shared.v, m.v.row(k_row) + at_k, m.v.stride,
                                                    first, args.tk, head_dim);
  if (!walk.done(step)) stage_queries(step.head, step.tile.tile, shared.stages[0]);
  commit_copies();
  FragmentC dk[kDim / 8] = {}, dv[kDim / 8] = {};
  for (int buffer = 0; !walk.done(step); buffer ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this tile is there, the one before is used up
    const auto next = walk.next(step.head, step.tile.tile + 1);
    if (!walk.done(next)) stage_queries(next.head, next.tile.tile, shared.stages[buffer ^ 1]);
    commit_copies();
    if (step.tile.some) {
      const Stage<T, kDim>& stage = shared.stages[buffer];
      const TensorHead<kExtras> head(args, s, step.head);
      Scores<kDim> scores, dp;
      FragmentA p[kQueries<kDim> / 16], ds[kQueries<kDim> / 16];
      product<kDim>(shared.k, stage.q, scores);
      if constexpr (pass != Pass::values) {
        product<kDim>(shared.v, stage.dout, dp);
      } else {
        for (FragmentC& c : dp) c = {};
      }
      const auto range_of = [&](int column) {
        return args.range(s, step.tile.tile * kQueries<kDim> + column);
      };
      const auto position_of = [&](int r) {
        return args.position(s, first_key + r * 8 + lane_of_warp() / 4);
      };
      differentiate_columns<T>(head, !step.tile.all, range_of, position_of, stage.lse, stage.delta,
                               scores, dp, p, ds);
      if constexpr (pass != Pass::keys) accumulate<kDim>(p, stage.dout, dv);
      if constexpr (pass != Pass::values) accumulate<kDim>(ds, stage.q, dk);
    }
    step = next;
  }
  wait_for_copies<0>();
  __syncthreads();  // where there are no queries the keys may still be under way
  const int row = warp_of_block() * kRows;
  static_assert(kRows == 16);
  const ResultRows to{k_row, at_k, first_key, args.tk, head_dim};
  if constexpr (pass != Pass::values) {
    write_results<kDim>(m.dk, to, shared.k, row, dk, args.scale, args.scale);
  }
  if constexpr (pass != Pass::keys) write_results<kDim>(m.dv, to, shared.v, row, dv, 1, 1);
}

template <class T, int kDim, Pass pass>
void gradient_by(const KernelCtx& ctx, const AttentionArgs<float>& args,
                 const GradientMatrices<T>& m) {
  constexpr std::size_t kShared = sizeof(SharedKeys<T, kDim>);
  const std::int64_t blocks = ceil_div(args.tk, kKeys<kDim>) * args.sequences * args.kv_heads;
  const auto kernel =
      has_extras(args) ? keys_kernel<T, kDim, pass, true> : keys_kernel<T, kDim, pass, false>;
  allow_shared(kernel, kShared);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kThreads<kDim>, kShared}, kernel, args, m);
}

template <class T, int kDim>
void gradient(const KernelCtx& ctx, const AttentionArgs<float>& args,
              const GradientMatrices<T>& m) {
  if constexpr (kDim <= 128) {
    gradient_by<T, kDim, Pass::both>(ctx, args, m);
  } else {
    gradient_by<T, kDim, Pass::keys>(ctx, args, m);
    gradient_by<T, kDim, Pass::values>(ctx, args, m);
  }
}

}  // namespace key_tiles

}  // namespace llmtrain::kernels::cuda
