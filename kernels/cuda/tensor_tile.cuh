#pragma once
/// A tile of a product by one block on tensor cores: bf16, fp16, or fp32 rounded to TF32, with sums
/// in FP32.
///
/// Slices of the operands, 64 bytes of terms deep, go through a ring of kStages places in shared
/// memory, from which ldmatrix makes fragments. Chunks of 16 bytes are permuted within a row, so
/// that what a fragment reads at once lies in different banks. Each warp has 64 x 32 sums.

#include "kernels/cuda/product_tiles.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace llmtrain::kernels::cuda::tensor_tile {

inline constexpr int kThreads = 256;
/// Rows and columns of a tile.
inline constexpr int kSize = 128;
inline constexpr int kStages = 4;
/// Elements of a chunk, and terms of a slice.
template <class T>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(T));
template <class T>
inline constexpr int kDepth = 4 * kChunk<T>;
/// Fragments of A that two chunks of terms make, and how many of these a slice has.
inline constexpr int kSteps = 2;
/// Of a warp, in fragments of 16 rows and of 8 columns.
inline constexpr int kRowFragments = 4, kColFragments = 4;

/// The ring; 64 KiB.
template <class T>
struct Shared {
  T a[kStages][kSize * kDepth<T>], b[kStages][kSize * kDepth<T>];
};

/// A slice of an operand in shared memory: a row per line where terms adjoin, else one per term.
template <class T, bool kTermsAdjoin>
struct Slice {
  static constexpr int kRowChunks = kTermsAdjoin ? 4 : kSize / kChunk<T>;

  __device__ static int at(int row, int chunk) {
    const int turn = kTermsAdjoin ? row >> 1 & 3 : sizeof(T) == 2 ? row & 7 : (row & 3) * 2;
    return (row * kRowChunks + (chunk ^ turn)) * kChunk<T>;
  }

  /// Lines line .. line + 15 of one of kSteps as A, ...
  __device__ static FragmentA a(const T* slice, int line, int step) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kTermsAdjoin) {
      return rounded(ldmatrix(slice + at(line + lane % 16, 2 * step + lane / 16)));
    } else if constexpr (sizeof(T) == 2) {
      return ldmatrix_transposed(slice +
                                 at(16 * step + lane / 16 * 8 + lane % 8, line / 8 + lane / 8 % 2));
    } else {
      const int term = 8 * step + lane % 4, first = line + lane / 4;
      return {{word(slice, term, first), word(slice, term, first + 8), word(slice, term + 4, first),
               word(slice, term + 4, first + 8)}};
    }
  }
  /// ... and as the columns of two neighbouring B.
  __device__ static Matrices b(const T* slice, int line, int step) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if constexpr (kTermsAdjoin) {
      return rounded(
          ldmatrix(slice + at(line + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2)));
    } else if constexpr (sizeof(T) == 2) {
      return ldmatrix_transposed(slice + at(16 * step + lane % 16, line / 8 + lane / 16));
    } else {
      const int term = 8 * step + lane % 4, first = line + lane / 4;
      return {{word(slice, term, first), word(slice, term + 4, first), word(slice, term, first + 8),
               word(slice, term + 4, first + 8)}};
    }
  }

 private:
  /// ldmatrix does not transpose words.
  __device__ static std::uint32_t word(const T* slice, int term, int line) {
    return to_tf32(slice[at(term, line / 4) + line % 4]);
  }
  __device__ static Matrices rounded(Matrices m) {
    if constexpr (sizeof(T) == 4) {
      for (std::uint32_t& x : m.x) x = to_tf32(__uint_as_float(x));
    }
    return m;
  }
};

/// What one thread brings of an operand's slices: two chunks each, kApart rows apart. Unless
/// kPacked, chunks lie at any address and may be partly outside of the operand.
template <class T, bool kTermsAdjoin, bool kPacked>
struct Feed {
  using S = Slice<T, kTermsAdjoin>;
  static constexpr int kApart = kThreads / S::kRowChunks;
  const T* from;         // the first chunk of the next slice
  const T* operand;      // somewhere in it
  std::int64_t step;     // in memory, between the two
  std::int64_t advance;  // in memory, between two slices
  int place;             // in a slice
  int lines_left;        // what the operand has from the first element on
  std::int64_t terms_left;

  __device__ __forceinline__ Feed(const Operand<T>& o, std::int64_t first_line)
      : operand(o.rows.data) {
    const int row = static_cast<int>(threadIdx.x) / S::kRowChunks;
    const int chunk = static_cast<int>(threadIdx.x) % S::kRowChunks;
    const std::int64_t line = first_line + (kTermsAdjoin ? row : chunk * kChunk<T>);
    const int term = kTermsAdjoin ? chunk * kChunk<T> : row;
    from = kTermsAdjoin ? o.rows.row(line) + term : o.rows.row(term) + line;
    step = kApart * o.rows.stride;
    advance = kTermsAdjoin ? kDepth<T> : kDepth<T> * o.rows.stride;
    place = S::at(row, chunk);
    const std::int64_t left = o.lines - line;
    lines_left = static_cast<int>(left < kSize ? left : kSize);
    terms_left = o.terms - term;
  }

  /// Begins to bring the next slice; zeros beyond the operand.
  __device__ __forceinline__ void load(T* slice) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int line = kTermsAdjoin ? i * kApart : 0, term = kTermsAdjoin ? 0 : i * kApart;
      const bool real = line < lines_left && term < terms_left;
      T* const to = slice + place + i * kApart * S::kRowChunks * kChunk<T>;
      const T* const chunk = from + i * step;
      if constexpr (kPacked) {
        copy_async<16>(to, real ? chunk : operand, real);
      } else {
        Pack<T, kChunk<T>> pack{};
        for (int k = 0; k < kChunk<T>; ++k) {
          if (real && (kTermsAdjoin ? term + k < terms_left : line + k < lines_left)) {
            pack.x[k] = chunk[k];
          }
        }
        store_pack(to, pack);
      }
    }
    from += advance;
    terms_left -= kDepth<T>;
  }
};

using Sums = FragmentC[kRowFragments][kColFragments];

template <class T, bool kA, bool kB>
__device__ __forceinline__ void multiply_slices(const T* a, const T* b, int row, int col,
                                                Sums& sums) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    FragmentA x[kRowFragments];
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i) x[i] = Slice<T, kA>::a(a, row + i * 16, step);
#pragma unroll
    for (int j = 0; j < kColFragments; j += 2) {
      const Matrices y = Slice<T, kB>::b(b, col + j * 8, step);
#pragma unroll
      for (int i = 0; i < kRowFragments; ++i) {
        mma<T>(sums[i][j], x[i], first_b(y));
        mma<T>(sums[i][j + 1], x[i], second_b(y));
      }
    }
  }
}

/// Where results go.
template <class C>
struct Result {
  Rows<C> c;
  std::int64_t rows, cols;
  bool accumulate;
  /// Two neighbours may be written at once.
  bool pairs;
};

/// Adds to c what accumulates and writes the sums of a warp that lie within c.
template <class C>
__device__ __forceinline__ void store_tile(const Result<C>& result, std::int64_t row,
                                           std::int64_t col, const Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2 * kRowFragments; ++i) {
    const std::int64_t m = row + i * 8 + lane / 4;
    if (m >= result.rows) continue;
#pragma unroll
    for (int j = 0; j < kColFragments; ++j) {
      const std::int64_t n = col + j * 8 + lane % 4 * 2;
      C* const to = result.c.row(m) + n;
      const float* const from = sums[i / 2][j].x + i % 2 * 2;
      if (result.pairs && n < result.cols) {
        Pack<C, 2> pair;
        if (result.accumulate) pair = load_pack<2>(to);
        for (int k = 0; k < 2; ++k) {
          pair.x[k] = narrow<C>(result.accumulate ? widen(pair.x[k]) + from[k] : from[k]);
        }
        store_pack(to, pair);
      } else {
        for (int k = 0; k < 2 && n + k < result.cols; ++k) {
          to[k] = narrow<C>(result.accumulate ? widen(to[k]) + from[k] : from[k]);
        }
      }
    }
  }
}

/// The tile of c = a b^T, as lines of both, whose first element this is, by all kThreads threads.
/// The order of each sum is fixed by the number of its terms.
template <bool kA, bool kB, bool kPacked, class T, class C>
__device__ __forceinline__ void multiply_tile(const Operand<T>& a, const Operand<T>& b,
                                              const Result<C>& result, std::int64_t first_row,
                                              std::int64_t first_col) {
  Shared<T>& shared = *dynamic_shared<Shared<T>>();
  Feed<T, kA, kPacked> feed_a(a, first_row);
  Feed<T, kB, kPacked> feed_b(b, first_col);
  const auto slices = static_cast<int>((a.terms + kDepth<T> - 1) / kDepth<T>);
  const auto load = [&](int slice) {
    if (slice < slices) {
      feed_a.load(shared.a[slice % kStages]);
      feed_b.load(shared.b[slice % kStages]);
    }
    commit_copies();  // an empty group counts, too
  };
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int row = warp / 4 * (16 * kRowFragments), col = warp % 4 * (8 * kColFragments);
  // Of few rows, half of the warps may have none.
  const bool works = first_row + row < result.rows && first_col + col < result.cols;

  Sums sums = {};
  for (int slice = 0; slice < kStages - 1; ++slice) load(slice);
  for (int slice = 0; slice < slices; ++slice) {
    wait_for_copies<kStages - 2>();
    // This slice is there, and everybody has read the one before, whose place is the next to fill.
    __syncthreads();
    load(slice + kStages - 1);
    if (works) {
      multiply_slices<T, kA, kB>(shared.a[slice % kStages], shared.b[slice % kStages], row, col,
                                 sums);
    }
  }
  wait_for_copies<0>();
  if (works) store_tile(result, first_row + row, first_col + col, sums);
}

}  // namespace llmtrain::kernels::cuda::tensor_tile
