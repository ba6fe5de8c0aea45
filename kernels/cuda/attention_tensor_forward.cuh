#pragma once
/// Attention of bf16 or fp16 (T) on tensor cores: FlashAttention-2 with mma.sync. A warp has 32
/// queries, so that each fragment of keys and values serves two products; 16 where registers have
/// no room for more.

#include "kernels/cuda/attention_tensor_softmax.cuh"

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

template <int kDim>
constexpr std::size_t kForwardShared = sizeof(bf16) * (kQueries<kDim> + 2 * kKeys) * kDim;

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
  begin(args, h, rows);

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
      float decay[kM<kDim>][2];
      if (probabilities(kExtras ? 1 : head.factor, p, rows, decay)) rescale(decay, out);
      if constexpr (kExtras) {
        if (args.drops) drop(head, s, first_query, first_key, p);
      }
      values<kDim>(p, v, out);
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // where there are no keys the queries may still be under way
  finish<kDim>(args, m, s, h, first_query, q, warp_of_block() * kRows<kDim>, rows, out);
}

}  // namespace forward_tiles

template <class T, int kDim>
void tensor_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  using namespace forward_tiles;
  const auto args = attention_args<float>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0 || args.tq == 0) return;
  find_bounds(ctx, args);
  const ForwardMatrices<T> m{Rows<const T>(op.q), Rows<const T>(op.k), Rows<const T>(op.v),
                             Results<T>(op.out), static_cast<float*>(op.lse.data)};
  const std::int64_t blocks = ceil_div(args.tq, kQueries<kDim>) * args.sequences * args.heads;
  const auto kernel =
      has_extras(args) ? forward_kernel<T, kDim, true> : forward_kernel<T, kDim, false>;
  allow_shared(kernel, kForwardShared<kDim>);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kThreads, kForwardShared<kDim>}, kernel, args,
              m);
}

}  // namespace llmtrain::kernels::cuda
