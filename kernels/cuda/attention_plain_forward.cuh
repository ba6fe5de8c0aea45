#pragma once
/// Attention without tensor cores: online softmax over tiles of keys, products of fp32 (fp64) by
/// fused multiply-adds. For fp64, for fp32, and for bf16 and fp16 whose heads tensor cores do not
/// take.

#include <limits>

#include "kernels/cuda/attention_plain.cuh"

namespace llmtrain::kernels::cuda {

namespace plain_forward_tiles {

/// Queries, keys and then values in one place, probabilities: 150 KiB at most.
template <class T, int kDim>
using ForwardTile = PlainTile<T, kDim, sizeof(Wide<T>) == 8 ? 2 : 4>;

template <class T, int kDim>
constexpr std::size_t kForwardShared = sizeof(Wide<T>) * (2 * ForwardTile<T, kDim>::kMatrix +
                                                          ForwardTile<T, kDim>::kPairs);

/// Among the 16 threads of a row of the tile.
template <class W>
__device__ __forceinline__ W max_of_row(W x) {
  for (int bits = 8; bits > 0; bits /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, bits));
  return x;
}
template <class W>
__device__ __forceinline__ W sum_of_row(W x) {
  for (int bits = 8; bits > 0; bits /= 2) x += __shfl_xor_sync(~0u, x, bits);
  return x;
}

template <class W, int R>
struct RowStates {
  static constexpr W kNothing = -std::numeric_limits<W>::infinity();
  KeyRange range[R];
  W max[R], sum[R];  // the sum is this thread's part
};

/// Turns products into probabilities relative to the maximum so far, and gives what the sums of old
/// must be multiplied with.
template <class Tile, class W, int R>
__device__ void probabilities(const PlainHead<W>& head, int first_key, RowStates<W, R>& rows,
                              typename Tile::Scores& x, W (&decay)[R]) {
  using std::exp;
  int position[R];
#pragma unroll
  for (int c = 0; c < R; ++c) {
    position[c] = head.args.position(head.sequence, first_key + Tile::other(c));
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const KeyRange range = rows.range[r];
    W max = rows.max[r];
#pragma unroll
    for (int c = 0; c < R; ++c) {
      W& s = x.x[r][c];
      s = range.contains(position[c]) ? head.score(s) + head.bias(range.last, position[c])
                                      : RowStates<W, R>::kNothing;
      max = fmax(max, s);
    }
    max = max_of_row(max);
    // A row that has seen nothing yet: any finite number keeps exp(-inf - max) at zero.
    const W safe = max == RowStates<W, R>::kNothing ? W{0} : max;
    decay[r] = exp(rows.max[r] - safe);
    rows.max[r] = max;
    W sum = rows.sum[r] * decay[r];
#pragma unroll
    for (int c = 0; c < R; ++c) {
      W& s = x.x[r][c];
      s = exp(s - safe);
      sum += s;
      if (head.args.drops && range.contains(position[c]) && !head.keeps(range.last, position[c])) {
        s = 0;
      }
    }
    rows.sum[r] = sum;
  }
}

template <class T, int kDim>
__global__ void __launch_bounds__(kPlainThreads)
    forward_kernel(AttentionArgs<Wide<T>> args, Rows<const T> q, Rows<const T> k, Rows<const T> v,
                   Results<T> out, Wide<T>* lse, bool packs) {
  using W = Wide<T>;
  using Tile = ForwardTile<T, kDim>;
  constexpr int R = Tile::kRows / 16;
  W* const q_tile = dynamic_shared<W>();
  W* const kv_tile = q_tile + Tile::kMatrix;
  W* const pairs = kv_tile + Tile::kMatrix;

  // Late queries, which see most keys, begin first.
  const int tiles = (args.tq + Tile::kRows - 1) / Tile::kRows;
  const int first = (tiles - 1 - static_cast<int>(blockIdx.x) % tiles) * Tile::kRows;
  const int n = static_cast<int>(blockIdx.x) / tiles;
  const PlainHead<W> head(args, n / args.heads, n % args.heads);
  const int s = head.sequence, head_dim = args.head_dim;
  const std::int64_t at_q = static_cast<std::int64_t>(head.head) * head_dim;
  const std::int64_t at_k = static_cast<std::int64_t>(head.head / args.per_group()) * head_dim;
  const std::int64_t q_row = static_cast<std::int64_t>(s) * args.tq;
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;

  Tile::stage(q_tile, q.row(q_row) + at_q, q.stride, first, args.tq, head_dim, packs);
  RowStates<W, R> rows;
  const W start = args.sink == nullptr ? rows.kNothing : args.sink_of(head.head);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    rows.range[r] = args.range(s, first + Tile::own(r));
    rows.max[r] = start;
    rows.sum[r] = args.sink != nullptr && Tile::tx() == 0 ? W{1} : W{0};
  }
  typename Tile::Sums sums;
  Tile::clear(sums);

  TileWalk<Side::keys, Tile::kRows, Tile::kRows, Tile::kRows, W> walk(args, s, first, first);
  for (auto step = walk.next(0); !walk.done(step); step = walk.next(step.tile + 1)) {
    const int first_key = step.tile * Tile::kRows;
    __syncthreads();  // the values before are used up
    Tile::stage(kv_tile, k.row(k_row) + at_k, k.stride, first_key, args.tk, head_dim, packs);
    __syncthreads();
    typename Tile::Scores x;
    W decay[R];
    Tile::dot(q_tile, kv_tile, head_dim, x);
    probabilities<Tile>(head, first_key, rows, x, decay);
    Tile::share(pairs, x);
    __syncthreads();  // the keys are used up, the probabilities are there
    Tile::stage(kv_tile, v.row(k_row) + at_k, v.stride, first_key, args.tk, head_dim, packs);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (auto& chunk : sums.x[r]) {
#pragma unroll
        for (W& sum : chunk) sum *= decay[r];
      }
    }
    __syncthreads();
    Tile::accumulate(pairs, kv_tile, head_dim, sums);
  }

  using std::log;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int i = first + Tile::own(r);
    const W sum = sum_of_row(rows.sum[r]);
    if (i >= args.tq) continue;
    Tile::write(out, q_row + i, at_q, head_dim, sums, r, sum == 0 ? W{0} : args.kept / sum, packs);
    if (Tile::tx() == 0) lse[args.statistic(s, head.head, i)] = rows.max[r] + log(sum);
  }
}

template <class T, int kDim>
void forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  using W = Wide<T>;
  const auto args = attention_args<W>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0 || args.tq == 0) return;
  find_bounds(ctx, args);
  const bool packs = op.shape.head_dim % kPack<T> == 0 && rows_aligned(op.q, 16) &&
                     rows_aligned(op.k, 16) && rows_aligned(op.v, 16) && rows_aligned(op.out, 16);
  constexpr std::size_t kShared = kForwardShared<T, kDim>;
  const std::int64_t blocks =
      ceil_div(args.tq, ForwardTile<T, kDim>::kRows) * args.sequences * args.heads;
  allow_shared(forward_kernel<T, kDim>, kShared);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kPlainThreads, kShared}, forward_kernel<T, kDim>,
              args, Rows<const T>(op.q), Rows<const T>(op.k), Rows<const T>(op.v),
              Results<T>(op.out), static_cast<W*>(op.lse.data), packs);
}

}  // namespace plain_forward_tiles

template <class T>
void plain_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  with_padded_dim(op.shape.head_dim,
                  [&]<int kDim>() { plain_forward_tiles::forward<T, kDim>(ctx, op, workspace); });
}

}  // namespace llmtrain::kernels::cuda
