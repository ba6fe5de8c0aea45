#pragma once
/// Tiles of the plain attention kernels: operands widened in shared memory, 16 x 16 threads, each
/// with R x R scores in registers.

#include "kernels/cuda/attention.cuh"

namespace llmtrain::kernels::cuda {

inline constexpr int kPlainThreads = 256;

/// R: rows of either side per thread; kDim: what head_dim is padded to.
template <class T, int kDim, int R>
struct PlainTile {
  using W = Wide<T>;
  static constexpr int kRows = 16 * R;
  /// Of a row in shared memory: 16 bytes more than a multiple of 128, so that neighbouring threads
  /// that read neighbouring rows hit different banks.
  static constexpr int kStride = kDim + 16 / static_cast<int>(sizeof(W));
  static constexpr int kPairStride = kRows + 16 / static_cast<int>(sizeof(W));
  static constexpr int kMatrix = kRows * kStride;
  static constexpr int kPairs = kRows * kPairStride;
  /// A thread's columns of a matrix of kDim columns: 4 neighbours in every 64.
  static constexpr int kChunks = kDim / 64;

  struct Scores {
    W x[R][R];
  };
  struct Sums {
    W x[R][kChunks][4];
  };

  __device__ static int tx() { return static_cast<int>(threadIdx.x % 16); }
  __device__ static int ty() { return static_cast<int>(threadIdx.x / 16); }
  /// The tile's rows that belong to this thread as the first and as the second operand of a
  /// product.
  __device__ static int own(int r) { return ty() * R + r; }
  __device__ static int other(int c) { return tx() + 16 * c; }

  /// Rows first .. first + kRows - 1 of a head, zero from `end` on and behind head_dim.
  __device__ static void stage(W* to, const T* from, std::int64_t stride, int first, int end,
                               int head_dim, bool packs) {
    if (packs) {
      constexpr int V = kPack<T>;
      for (int n = static_cast<int>(threadIdx.x) * V; n < kRows * kDim; n += kPlainThreads * V) {
        const int row = n / kDim, d = n % kDim;
        Pack<T, V> pack;
        const bool real = first + row < end && d < head_dim;
        if (real) pack = load_pack<V>(from + (first + row) * stride + d);
        constexpr int kWide = 16 / static_cast<int>(sizeof(W));
#pragma unroll
        for (int i = 0; i < V; i += kWide) {
          Pack<W, kWide> wide;
#pragma unroll
          for (int l = 0; l < kWide; ++l) wide.x[l] = real ? widen(pack.x[i + l]) : W{0};
          store_pack(to + row * kStride + d + i, wide);
        }
      }
      return;
    }
    for (int n = static_cast<int>(threadIdx.x); n < kRows * kDim; n += kPlainThreads) {
      const int row = n / kDim, d = n % kDim;
      const bool real = first + row < end && d < head_dim;
      to[row * kStride + d] = real ? widen(from[(first + row) * stride + d]) : W{0};
    }
  }

  /// x[r][c] = row own(r) of a, times row other(c) of b.
  __device__ static void dot(const W* a, const W* b, int head_dim, Scores& result) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < R; ++c) result.x[r][c] = 0;
    }
    constexpr int V = 16 / static_cast<int>(sizeof(W));
#pragma unroll 2
    for (int d = 0; d < head_dim; d += V) {
      Pack<W, V> x[R], y[R];
#pragma unroll
      for (int r = 0; r < R; ++r) x[r] = load_pack<V>(a + own(r) * kStride + d);
#pragma unroll
      for (int c = 0; c < R; ++c) y[c] = load_pack<V>(b + other(c) * kStride + d);
#pragma unroll
      for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
          for (int c = 0; c < R; ++c) {
            result.x[r][c] = fma(x[r].x[i], y[c].x[i], result.x[r][c]);
          }
        }
      }
    }
  }

  /// pairs[own][other] = x, for accumulate().
  __device__ static void share(W* pairs, const Scores& x) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int c = 0; c < R; ++c) pairs[own(r) * kPairStride + other(c)] = x.x[r][c];
    }
  }

  /// sums of row own(r) += pairs[own(r)][j] * row j of b, j upwards.
  __device__ static void accumulate(const W* pairs, const W* b, int head_dim, Sums& sums) {
    constexpr int V = 16 / static_cast<int>(sizeof(W));
    for (int j = 0; j < kRows; j += V) {
      Pack<W, V> p[R];
#pragma unroll
      for (int r = 0; r < R; ++r) p[r] = load_pack<V>(pairs + own(r) * kPairStride + j);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const W* const row = b + (j + i) * kStride + tx() * 4;
#pragma unroll
        for (int n = 0; n < kChunks; ++n) {
          if (n * 64 >= head_dim) break;
          W y[4];
#pragma unroll
          for (int m = 0; m < 4; m += V) {
            const auto pack = load_pack<V>(row + n * 64 + m);
#pragma unroll
            for (int l = 0; l < V; ++l) y[m + l] = pack.x[l];
          }
#pragma unroll
          for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int m = 0; m < 4; ++m) sums.x[r][n][m] = fma(p[r].x[i], y[m], sums.x[r][n][m]);
          }
        }
      }
    }
  }

  __device__ static void clear(Sums& sums) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int n = 0; n < kChunks; ++n) {
#pragma unroll
        for (int m = 0; m < 4; ++m) sums.x[r][n][m] = 0;
      }
    }
  }

  /// Row own(r) of a head, times `factor`, to row `row` from column `column` on.
  __device__ static void write(const Results<T>& to, std::int64_t row, std::int64_t column,
                               int head_dim, const Sums& sums, int r, W factor, bool packs) {
    to.wide ? write_as(to.wide_row(row) + column, head_dim, sums, r, factor, packs)
            : write_as(to.row(row) + column, head_dim, sums, r, factor, packs);
  }

 private:
  template <class O>
  __device__ static void write_as(O* to, int head_dim, const Sums& sums, int r, W factor,
                                  bool packs) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const int d = n * 64 + tx() * 4;
      Pack<O, 4> pack;
#pragma unroll
      for (int m = 0; m < 4; ++m) pack.x[m] = narrow<O>(sums.x[r][n][m] * factor);
      if (packs && d < head_dim) {
        constexpr int V = kPack<O> < 4 ? kPack<O> : 4;
#pragma unroll
        for (int m = 0; m < 4; m += V) {
          if (d + m >= head_dim) break;  // 4 columns are two packs of fp64
          Pack<O, V> part;
#pragma unroll
          for (int l = 0; l < V; ++l) part.x[l] = pack.x[m + l];
          store_pack(to + d + m, part);
        }
      } else {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          if (d + m < head_dim) to[d + m] = pack.x[m];
        }
      }
    }
  }
};

/// What is the same for a block of the plain kernels.
template <class W>
struct PlainHead {
  const AttentionArgs<W>& args;
  int sequence, head;
  W alibi;
  std::uint64_t dropout_rows, step;

  __device__ PlainHead(const AttentionArgs<W>& a, int s, int h)
      : args(a),
        sequence(s),
        head(h),
        alibi(a.slope_of_alibi(h)),
        dropout_rows(a.dropout_rows(s, h)),
        step(a.step_now()) {}

  /// Score from a product: scaled and capped; without the bias.
  __device__ W score(W product) const {
    using std::tanh;
    const W raw = args.scale * product;
    return args.softcap > 0 ? args.softcap * tanh(raw / args.softcap) : raw;
  }
  __device__ W bias(int q_position, int k_position) const {
    return args.alibi == nullptr ? W{0} : alibi * static_cast<W>(k_position - q_position);
  }
  __device__ bool keeps(int q_position, int k_position) const {
    return !args.drops ||
           args.keeps(step, args.dropout_index(dropout_rows, q_position, k_position));
  }
};

/// Calls f.operator()<kDim>() for what head_dim is padded to. InternalError above kMaxHeadDim.
template <class F>
void with_padded_dim(std::int64_t head_dim, const F& f) {
  if (head_dim <= 64) return f.template operator()<64>();
  if (head_dim <= 128) return f.template operator()<128>();
  if (head_dim <= kMaxHeadDim) return f.template operator()<256>();
  throw InternalError("attention on a GPU takes heads of up to 256 elements");
}

}  // namespace llmtrain::kernels::cuda
