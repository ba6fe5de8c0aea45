#pragma once
/// The gradients of attention without tensor cores. Probabilities and gradients of scores are
/// computed twice, by a pass over tiles of queries (dq) and one over tiles of keys (dk, dv), so
/// that every sum is one block's, in order of the other side's rows.

#include "kernels/cuda/attention_plain.cuh"

namespace llmtrain::kernels::cuda {

namespace plain_backward_tiles {

/// Four matrices and one of pairs: 152 KiB at most.
template <class T, int kDim>
using BackwardTile = PlainTile<T, kDim, (sizeof(Wide<T>) == 8 ? 2 : 4) / (kDim == 256 ? 2 : 1)>;

template <class T, int kDim>
constexpr std::size_t kBackwardShared = sizeof(Wide<T>) * (4 * BackwardTile<T, kDim>::kMatrix +
                                                           BackwardTile<T, kDim>::kPairs);

/// What the backward knows of a query.
template <class W>
struct Query {
  KeyRange range;
  W lse, delta;
};

template <class T>
struct BackwardMatrices {
  Rows<const T> q, k, v, dout;
  Results<T> dq, dk, dv;
  const Wide<T>* lse;
  const Wide<T>* delta;
};

template <class W>
__device__ Query<W> query_of(const AttentionArgs<W>& args, const W* lse, const W* delta,
                             int sequence, int head, int i) {
  Query<W> query{args.range(sequence, i), 0, 0};
  if (i < args.tq) {
    query.lse = lse[args.statistic(sequence, head, i)];
    query.delta = delta[args.statistic(sequence, head, i)];
  }
  return query;
}

/// From the products q k^T (x) and dout v^T (dx) of one pair to the gradient of its score (dx) and
/// its probability after dropout (x).
template <class W>
__device__ __forceinline__ void differentiate(const PlainHead<W>& head, const Query<W>& query,
                                              int position, W& x, W& dx) {
  using std::exp;
  if (!query.range.contains(position)) {
    x = dx = 0;
    return;
  }
  const W score = head.score(x);
  const W p = exp(score + head.bias(query.range.last, position) - query.lse);
  const W kept = head.keeps(query.range.last, position) ? head.args.kept : W{0};
  x = p * kept;
  dx = p * (kept * dx - query.delta);
  if (head.args.softcap > 0) dx *= cap_slope(score, head.args.softcap);
}

template <class T, int kDim>
__global__ void __launch_bounds__(kPlainThreads)
    queries_kernel(AttentionArgs<Wide<T>> args, BackwardMatrices<T> m, bool packs) {
  using W = Wide<T>;
  using Tile = BackwardTile<T, kDim>;
  constexpr int R = Tile::kRows / 16;
  W* const q_tile = dynamic_shared<W>();
  W* const dout_tile = q_tile + Tile::kMatrix;
  W* const k_tile = dout_tile + Tile::kMatrix;
  W* const v_tile = k_tile + Tile::kMatrix;
  W* const pairs = v_tile + Tile::kMatrix;

  const int tiles = (args.tq + Tile::kRows - 1) / Tile::kRows;
  const int first = (tiles - 1 - static_cast<int>(blockIdx.x) % tiles) * Tile::kRows;
  const int n = static_cast<int>(blockIdx.x) / tiles;
  const PlainHead<W> head(args, n / args.heads, n % args.heads);
  const int s = head.sequence, head_dim = args.head_dim;
  const std::int64_t at_q = static_cast<std::int64_t>(head.head) * head_dim;
  const std::int64_t at_k = static_cast<std::int64_t>(head.head / args.per_group()) * head_dim;
  const std::int64_t q_row = static_cast<std::int64_t>(s) * args.tq;
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;

  Tile::stage(q_tile, m.q.row(q_row) + at_q, m.q.stride, first, args.tq, head_dim, packs);
  Tile::stage(dout_tile, m.dout.row(q_row) + at_q, m.dout.stride, first, args.tq, head_dim, packs);
  Query<W> query[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    query[r] = query_of(args, m.lse, m.delta, s, head.head, first + Tile::own(r));
  }
  typename Tile::Sums dq;
  Tile::clear(dq);
  TileWalk<Side::keys, Tile::kRows, Tile::kRows, Tile::kRows, W> walk(args, s, first, first);
  for (auto step = walk.next(0); !walk.done(step); step = walk.next(step.tile + 1)) {
    const int first_key = step.tile * Tile::kRows;
    __syncthreads();  // the keys before are used up
    Tile::stage(k_tile, m.k.row(k_row) + at_k, m.k.stride, first_key, args.tk, head_dim, packs);
    Tile::stage(v_tile, m.v.row(k_row) + at_k, m.v.stride, first_key, args.tk, head_dim, packs);
    __syncthreads();
    typename Tile::Scores x, dx;
    Tile::dot(q_tile, k_tile, head_dim, x);
    Tile::dot(dout_tile, v_tile, head_dim, dx);
#pragma unroll
    for (int c = 0; c < R; ++c) {
      const int position = args.position(s, first_key + Tile::other(c));
#pragma unroll
      for (int r = 0; r < R; ++r) {
        differentiate(head, query[r], position, x.x[r][c], dx.x[r][c]);
      }
    }
    Tile::share(pairs, dx);
    __syncthreads();
    Tile::accumulate(pairs, k_tile, head_dim, dq);
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int i = first + Tile::own(r);
    if (i < args.tq) {
      Tile::write(m.dq, q_row + i, at_q, head_dim, dq, r, args.scale, packs);
    }
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(kPlainThreads)
    keys_kernel(AttentionArgs<Wide<T>> args, BackwardMatrices<T> m, bool packs) {
  using W = Wide<T>;
  using Tile = BackwardTile<T, kDim>;
  constexpr int R = Tile::kRows / 16;
  W* const k_tile = dynamic_shared<W>();
  W* const v_tile = k_tile + Tile::kMatrix;
  W* const q_tile = v_tile + Tile::kMatrix;
  W* const dout_tile = q_tile + Tile::kMatrix;
  W* const pairs = dout_tile + Tile::kMatrix;

  // Early keys, which most queries see, begin first.
  const int tiles = (args.tk + Tile::kRows - 1) / Tile::kRows;
  const int first = static_cast<int>(blockIdx.x) % tiles * Tile::kRows;
  const int n = static_cast<int>(blockIdx.x) / tiles;
  const int s = n / args.kv_heads, group = n % args.kv_heads, head_dim = args.head_dim;
  const std::int64_t at_k = static_cast<std::int64_t>(group) * head_dim;
  const std::int64_t q_row = static_cast<std::int64_t>(s) * args.tq;
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;

  Tile::stage(k_tile, m.k.row(k_row) + at_k, m.k.stride, first, args.tk, head_dim, packs);
  Tile::stage(v_tile, m.v.row(k_row) + at_k, m.v.stride, first, args.tk, head_dim, packs);
  int position[R];
#pragma unroll
  for (int r = 0; r < R; ++r) position[r] = args.position(s, first + Tile::own(r));
  typename Tile::Sums dk, dv;
  Tile::clear(dk);
  Tile::clear(dv);
  for (int h = group * args.per_group(); h < (group + 1) * args.per_group(); ++h) {
    const PlainHead<W> head(args, s, h);
    const std::int64_t at_q = static_cast<std::int64_t>(h) * head_dim;
    TileWalk<Side::queries, Tile::kRows, Tile::kRows, Tile::kRows, W> walk(args, s, first, first);
    for (auto step = walk.next(0); !walk.done(step); step = walk.next(step.tile + 1)) {
      const int first_query = step.tile * Tile::kRows;
      __syncthreads();  // the queries before are used up
      Tile::stage(q_tile, m.q.row(q_row) + at_q, m.q.stride, first_query, args.tq, head_dim, packs);
      Tile::stage(dout_tile, m.dout.row(q_row) + at_q, m.dout.stride, first_query, args.tq,
                  head_dim, packs);
      __syncthreads();
      typename Tile::Scores x, dx;
      Tile::dot(k_tile, q_tile, head_dim, x);
      Tile::dot(v_tile, dout_tile, head_dim, dx);
#pragma unroll
      for (int c = 0; c < R; ++c) {
        const Query<W> query = query_of(args, m.lse, m.delta, s, h, first_query + Tile::other(c));
#pragma unroll
        for (int r = 0; r < R; ++r) {
          differentiate(head, query, position[r], x.x[r][c], dx.x[r][c]);
        }
      }
      Tile::share(pairs, dx);
      __syncthreads();
      Tile::accumulate(pairs, q_tile, head_dim, dk);
      __syncthreads();
      Tile::share(pairs, x);
      __syncthreads();
      Tile::accumulate(pairs, dout_tile, head_dim, dv);
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int j = first + Tile::own(r);
    if (j >= args.tk) continue;
    Tile::write(m.dk, k_row + j, at_k, head_dim, dk, r, args.scale, packs);
    Tile::write(m.dv, k_row + j, at_k, head_dim, dv, r, W{1}, packs);
  }
}

template <class T, int kDim>
void backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  using W = Wide<T>;
  const auto args = attention_args<W>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0) return;
  find_bounds(ctx, args);
  const W* const delta = find_delta(ctx, op, args, workspace);
  bool packs = op.shape.head_dim % kPack<T> == 0;
  for (const View& view : {op.q, op.k, op.v, op.dout, op.dq, op.dk, op.dv}) {
    packs &= rows_aligned(view, 16);
  }
  const BackwardMatrices<T> m{Rows<const T>(op.q),
                              Rows<const T>(op.k),
                              Rows<const T>(op.v),
                              Rows<const T>(op.dout),
                              Results<T>(op.dq),
                              Results<T>(op.dk),
                              Results<T>(op.dv),
                              static_cast<const W*>(op.lse.data),
                              delta};
  constexpr std::size_t kShared = kBackwardShared<T, kDim>;
  constexpr int kRows = BackwardTile<T, kDim>::kRows;
  const std::int64_t for_dq = ceil_div(args.tq, kRows) * args.sequences * args.heads;
  const std::int64_t for_dk = ceil_div(args.tk, kRows) * args.sequences * args.kv_heads;
  allow_shared(queries_kernel<T, kDim>, kShared);
  allow_shared(keys_kernel<T, kDim>, kShared);
  launch_grid(ctx, {static_cast<unsigned>(for_dq), kPlainThreads, kShared}, queries_kernel<T, kDim>,
              args, m, packs);
  launch_grid(ctx, {static_cast<unsigned>(for_dk), kPlainThreads, kShared}, keys_kernel<T, kDim>,
              args, m, packs);
}

}  // namespace plain_backward_tiles

template <class T>
void plain_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  with_padded_dim(op.shape.head_dim,
                  [&]<int kDim>() { plain_backward_tiles::backward<T, kDim>(ctx, op, workspace); });
}

}  // namespace llmtrain::kernels::cuda
