#pragma once
/// What both backward kernels on tensor cores share. There are two, so that every sum is one
/// block's in a fixed order and nothing is added to memory: seven products instead of five.

#include "kernels/cuda/attention_tensor.cuh"

namespace llmtrain::kernels::cuda {

template <class T>
struct GradientMatrices {
  Rows<const T> q, k, v, dout;
  Results<T> dq, dk, dv;
  const float *lse, *delta;
};

/// Of a query and a key.
struct PairGradient {
  float p;   // probability after dropout
  float ds;  // gradient of the score, but for the scale
};

/// From the products q k^T and dout v^T. `visible` is what the masks say, `kept` what dropout says;
/// true where there are none.
template <bool kExtras>
__device__ __forceinline__ PairGradient gradient_of(const TensorHead<kExtras>& head, float product,
                                                    float dproduct, float lse2, float delta,
                                                    int q_position, int k_position, bool visible,
                                                    bool kept) {
  if constexpr (kExtras) {
    float slope;
    const float score = head.score(product, q_position, k_position, slope);
    const float p = visible ? exp2_fast(score - lse2) : 0;
    const float factor = kept ? head.args.kept : 0;
    return {p * factor, p * slope * fmaf(factor, dproduct, -delta)};
  } else {
    const float exact = exp2_fast(fmaf(product, head.factor, -lse2));
    const float p = visible ? exact : 0;
    return {p, p * (dproduct - delta)};
  }
}

// ---- Rows of queries

/// Per row of a thread: m-tile, half.
template <int M>
struct RowStatistics {
  float lse2[M][2], delta[M][2];
};

template <class T, int M>
__device__ __forceinline__ void load(const AttentionArgs<float>& args, const GradientMatrices<T>& m,
                                     int sequence, int head, int first_query,
                                     RowStatistics<M>& rows) {
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    const int i = first_query + r * 8 + lane_of_warp() / 4;
    const bool real = i < args.tq;
    rows.lse2[r / 2][r % 2] = real ? m.lse[args.statistic(sequence, head, i)] * kLog2e : 0;
    rows.delta[r / 2][r % 2] = real ? m.delta[args.statistic(sequence, head, i)] : 0;
  }
}

/// For rows of queries: ds from s and dp = dout v^T, in the place of dp. range_of(r) is what row r
/// of the thread sees, positions_of(column) the positions of two neighbouring keys of the tile.
template <bool kMasked, bool kExtras, int M, int N, class RangeOf, class PositionsOf>
__device__ __forceinline__ void differentiate_rows_as(
    const TensorHead<kExtras>& head, const RangeOf& range_of, const PositionsOf& positions_of,
    const RowStatistics<M>& rows, const FragmentC (&s)[M][N], FragmentC (&dp)[M][N]) {
  const int t = lane_of_warp() % 4;
  KeyRange range[2 * M] = {};
  if constexpr (kMasked) {
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) range[r] = range_of(r);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    Pack<int, 2> position{};
    if constexpr (kMasked) position = positions_of(n * 8 + 2 * t);
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
      bool kept[2] = {true, true};
      if constexpr (kExtras) {
        if (head.args.drops) head.keeps(range[r].last, position.x[0], position.x[1], kept);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = r % 2 * 2 + c;
        float& d = dp[r / 2][n].x[i];
        d = gradient_of(head, s[r / 2][n].x[i], d, rows.lse2[r / 2][r % 2],
                        rows.delta[r / 2][r % 2], range[r].last, position.x[c],
                        !kMasked || range[r].contains(position.x[c]), kept[c])
                .ds;
      }
    }
  }
}
/// A tile that is seen as a whole has code without a condition.
template <bool kExtras, int M, int N, class RangeOf, class PositionsOf>
__device__ __forceinline__ void differentiate_rows(const TensorHead<kExtras>& head, bool masked,
                                                   const RangeOf& range_of,
                                                   const PositionsOf& positions_of,
                                                   const RowStatistics<M>& rows,
                                                   const FragmentC (&s)[M][N],
                                                   FragmentC (&dp)[M][N]) {
  if (kExtras || masked) {
    differentiate_rows_as<true>(head, range_of, positions_of, rows, s, dp);
  } else {
    differentiate_rows_as<false>(head, range_of, positions_of, rows, s, dp);
  }
}

// ---- Rows of keys

/// For rows of keys, columns of queries with `lses` and `deltas`: probabilities and gradients of
/// scores in the place of the products s and dp. range_of(column) is what a query sees,
/// position_of(r) the position of row r of the thread.
template <bool kMasked, bool kExtras, int N, class RangeOf, class PositionOf>
__device__ __forceinline__ void differentiate_columns_as(const TensorHead<kExtras>& head,
                                                         const RangeOf& range_of,
                                                         const PositionOf& position_of,
                                                         const float* lses, const float* deltas,
                                                         FragmentC (&s)[N], FragmentC (&dp)[N]) {
  const int t = lane_of_warp() % 4;
  int position[2] = {};
  if constexpr (kMasked) {
    for (int r = 0; r < 2; ++r) position[r] = position_of(r);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int column = n * 8 + 2 * t;
    const auto lse = load_pack<2>(lses + column), delta = load_pack<2>(deltas + column);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      KeyRange range{};
      if constexpr (kMasked) range = range_of(column + c);
      bool kept[2] = {true, true};
      if constexpr (kExtras) {
        if (head.args.drops) head.keeps(range.last, position[0], position[1], kept);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = s[n].x[2 * r + c];
        float& d = dp[n].x[2 * r + c];
        const PairGradient pair =
            gradient_of(head, x, d, lse.x[c] * kLog2e, delta.x[c], range.last, position[r],
                        !kMasked || range.contains(position[r]), kept[r]);
        x = pair.p;
        d = pair.ds;
      }
    }
  }
}
/// The same, and as fragments, as T, of the next products.
template <class T, bool kExtras, int N, class RangeOf, class PositionOf>
__device__ __forceinline__ void differentiate_columns(
    const TensorHead<kExtras>& head, bool masked, const RangeOf& range_of,
    const PositionOf& position_of, const float* lses, const float* deltas, FragmentC (&s)[N],
    FragmentC (&dp)[N], FragmentA (&p)[N / 2], FragmentA (&ds)[N / 2]) {
  if (kExtras || masked) {
    differentiate_columns_as<true>(head, range_of, position_of, lses, deltas, s, dp);
  } else {
    differentiate_columns_as<false>(head, range_of, position_of, lses, deltas, s, dp);
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    p[i] = a_of<T>(s[2 * i], s[2 * i + 1]);
    ds[i] = a_of<T>(dp[2 * i], dp[2 * i + 1]);
  }
}

/// The tiles of queries of all heads of a group, head by head.
template <int kTile, int kOwn, int kPart>
class GroupWalk {
  using Tiles = TileWalk<Side::queries, kTile, kOwn, kPart, float>;

 public:
  struct Step {
    int head;
    typename Tiles::Step tile;
  };
  __device__ GroupWalk(const AttentionArgs<float>& args, int sequence, int group, int own, int part)
      : tiles_(args, sequence, own, part), end_((group + 1) * args.per_group()) {}
  __device__ bool done(const Step& step) const { return step.head >= end_; }
  /// The first from `tile` of `head` on. All heads have the same tiles.
  __device__ Step next(int head, int tile) {
    auto step = tiles_.next(tile);
    if (!tiles_.done(step)) return {head, step};
    step = tiles_.next(0);
    return {tiles_.done(step) ? end_ : head + 1, step};
  }

 private:
  Tiles tiles_;
  int end_;
};

}  // namespace llmtrain::kernels::cuda
