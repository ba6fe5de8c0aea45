#pragma once
/// Tiles of the attention kernels on tensor cores. The products follow FlashAttention-2 (arXiv
/// 2307.08691): scores stay in registers, and as fragments of C they are the fragments of A of the
/// product that uses them.

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace llmtrain::kernels::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ int warp_of_block() { return static_cast<int>(threadIdx.x / 32); }
__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x % 32); }

/// Rows of kDim elements of half the width of a float in shared memory. Chunks of 16 bytes are
/// permuted within a row, so that the same chunk of 8 rows in turn lies in different banks.
template <class T, int kDim>
struct TensorTile {
  static_assert(kDim % 32 == 0);
  static constexpr int kChunks = kDim / 8;

  __device__ static int at(int row, int chunk) {
    const int turned = kDim % 64 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3);
    return row * kDim + turned * 8;
  }

  /// Copies kRows rows, `first` the first of them, by all kThreads threads; zeros from row `end` on
  /// and behind head_dim.
  template <int kRows, int kThreads>
  __device__ static void stage(T* to, const T* from, std::int64_t stride, int first, int end,
                               int head_dim) {
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
      const int n = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = n / kChunks, chunk = n % kChunks;
      const bool real = first + row < end && chunk * 8 < head_dim;
      copy_async<16>(to + at(row, chunk), real ? from + (first + row) * stride + chunk * 8 : from,
                     real);
    }
    static_assert(kRows * kChunks % kThreads == 0);
  }

  /// Rows row .. row + 15, columns 16 k .. 16 k + 15 as A; or, transposed, as the two B whose 16
  /// rows of summation these are.
  __device__ static FragmentA a(const T* tile, int row, int k) {
    const int lane = lane_of_warp();
    return ldmatrix(tile + at(row + lane % 16, 2 * k + lane / 16));
  }
  __device__ static Matrices b_transposed(const T* tile, int row, int k) {
    const int lane = lane_of_warp();
    return ldmatrix_transposed(tile + at(row + lane % 16, 2 * k + lane / 16));
  }
  /// Rows row .. row + 15 as the columns of two B, columns 16 k .. 16 k + 15 those of summation.
  __device__ static Matrices b(const T* tile, int row, int k) {
    const int lane = lane_of_warp();
    return ldmatrix(tile + at(row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
  }

  /// Writes 16 m-rows of sums, times `factor`, rounded, over rows of a tile that no other warp
  /// uses.
  __device__ static void put(T* tile, int row, const FragmentC (&sums)[kDim / 8], float low,
                             float high) {
    const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const FragmentC& c = sums[n];
      *reinterpret_cast<std::uint32_t*>(tile + at(row + g, n) + 2 * t) =
          pack_pair<T>(c.x[0] * low, c.x[1] * low);
      *reinterpret_cast<std::uint32_t*>(tile + at(row + g + 8, n) + 2 * t) =
          pack_pair<T>(c.x[2] * high, c.x[3] * high);
    }
  }
  /// Then, after __syncwarp(), kRows rows to memory in pieces of 16 bytes; `first` is the row of
  /// the sequence that row `row` of the tile is, rows from `end` on are left out.
  template <int kRows>
  __device__ static void flush(const T* tile, int row, T* to, std::int64_t stride, int first,
                               int end, int head_dim) {
#pragma unroll 4
    for (int n = lane_of_warp(); n < kRows * kChunks; n += 32) {
      const int r = n / kChunks, chunk = n % kChunks;
      if (first + r >= end || chunk * 8 >= head_dim) continue;
      store_pack(to + (first + r) * stride + chunk * 8, load_pack<8>(tile + at(row + r, chunk)));
    }
  }
};

/// Where rows of sums of a warp go.
struct ResultRows {
  std::int64_t sequence_row, column;  // of the sequence's first row, of the head's first column
  int first, end;                     // rows of the sequence: the first, and behind the last
  int head_dim;
};

/// Writes 16 rows of sums, times the factors of the upper and the lower eight: rounded by way of
/// rows `row` and on of a tile that no other warp uses, or as they are where results are FP32.
template <int kDim, class T>
__device__ __forceinline__ void write_results(const Results<T>& results, const ResultRows& to,
                                              T* tile, int row, const FragmentC (&sums)[kDim / 8],
                                              float low, float high) {
  using Tile = TensorTile<T, kDim>;
  if (!results.wide) {
    Tile::put(tile, row, sums, low, high);
    __syncwarp();
    Tile::template flush<16>(tile, row, results.row(to.sequence_row) + to.column, results.stride,
                             to.first, to.end, to.head_dim);
    return;
  }
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = to.first + half * 8 + g;
    if (at >= to.end) continue;
    const float factor = half == 0 ? low : high;
    float* const row_of_head = results.wide_row(to.sequence_row + at) + to.column;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n * 8 >= to.head_dim) break;
      const float* const x = sums[n].x + 2 * half;
      store_pack(row_of_head + n * 8 + 2 * t, Pack<float, 2>{{x[0] * factor, x[1] * factor}});
    }
  }
}

/// Fragment of A for 16 rows of summation, from the C of their two halves.
template <class T>
__device__ __forceinline__ FragmentA a_of(const FragmentC& first, const FragmentC& second) {
  return {{pack_pair<T>(first.x[0], first.x[1]), pack_pair<T>(first.x[2], first.x[3]),
           pack_pair<T>(second.x[0], second.x[1]), pack_pair<T>(second.x[2], second.x[3])}};
}

/// tanh within 2^-22: its errors are far below those of scores of such products.
__device__ __forceinline__ float tanh_fast(float x) {
  return 1 - 2 * reciprocal_fast(1 + exp2_fast(2 * kLog2e * x));
}

/// Scores of one head in units of log 2. With kExtras there may be a cap, ALiBi or dropout;
/// without, only a positive scale, which the caller multiplies in for nothing.
template <bool kExtras>
struct TensorHead {
  const AttentionArgs<float>& args;
  float factor;  // what products are multiplied with
  float alibi = 0;
  std::uint64_t dropout_rows = 0;
  std::uint64_t step = 0;

  __device__ TensorHead(const AttentionArgs<float>& a, int sequence, int head)
      : args(a), factor(a.scale * kLog2e) {
    if constexpr (kExtras) {
      alibi = a.slope_of_alibi(head);
      dropout_rows = a.dropout_rows(sequence, head);
      step = a.step_now();
    }
  }
  /// The score of a product and the derivative of the cap.
  __device__ float score(float product, int q_position, int k_position, float& slope) const {
    float x = args.scale * product;
    slope = 1;
    if (args.softcap > 0) {
      const float t = tanh_fast(x / args.softcap);
      x = args.softcap * t;
      slope = 1 - t * t;
    }
    if (args.alibi != nullptr) {
      // Of a missing row the difference is meaningless, and may wrap.
      const auto distance =
          static_cast<int>(static_cast<unsigned>(k_position) - static_cast<unsigned>(q_position));
      x = fmaf(alibi, static_cast<float>(distance), x);
    }
    return x * kLog2e;
  }
  /// Whether dropout keeps the pairs of a query and two keys, which mostly share their words.
  __device__ void keeps(int q_position, int k_first, int k_second, bool (&kept)[2]) const {
    const std::uint64_t first = args.dropout_index(dropout_rows, q_position, k_first);
    const std::uint64_t second = args.dropout_index(dropout_rows, q_position, k_second);
    const PhiloxWords words = philox_block(args.key, step, first);
    kept[0] = AttentionArgs<float>::word_of(words, first) >= args.threshold;
    kept[1] = first / 4 == second / 4
                  ? AttentionArgs<float>::word_of(words, second) >= args.threshold
                  : args.keeps(step, second);
  }
};

/// Whether anything but a positive scale and masks is asked for.
inline bool has_extras(const AttentionArgs<float>& args) {
  return args.softcap > 0 || args.alibi != nullptr || args.drops || !(args.scale > 0);
}

}  // namespace llmtrain::kernels::cuda
