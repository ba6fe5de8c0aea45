#pragma once
/// A tile of a product by one block on the ordinary arithmetic units.
///
/// The operands pass through shared memory in slices of kDepth terms, two of them: while one is
/// multiplied, the next is on its way from memory into registers. Each thread keeps a square of
/// sums in registers, in four parts that lie half a tile apart, so that the 16-byte reads of
/// neighbouring threads are neighbours too.

#include "kernels/cuda/product_tiles.cuh"

namespace llmtrain::kernels::cuda::plain_tile {

inline constexpr int kThreads = 256;  // 16 x 16
inline constexpr int kSide = 16;
inline constexpr int kDepth = 16;
template <class W>
struct Tile {
  /// Sums of a thread are kEach x kEach.
  static constexpr int kEach = sizeof(W) == 8 ? 4 : 8;
  static constexpr int kSize = kSide * kEach;
  /// Neighbours that one 16-byte read brings.
  static constexpr int kRun = kEach / 2;
  /// 16 bytes more than a row: rows that are written side by side fall into other banks.
  static constexpr int kStride = kSize + kRun;
  /// Elements of a slice that a thread brings from memory.
  static constexpr int kLoads = kSize * kDepth / kThreads;
};

template <class W>
__device__ __forceinline__ W multiply_add(W a, W b, W sum) {
  if constexpr (sizeof(W) == 8) {
    return fma(a, b, sum);
  } else {
    return fmaf(a, b, sum);
  }
}

/// What one thread brings of an operand's slices: kLoads elements each, neighbouring threads
/// neighbours in memory. Its elements lie `line_step` lines and `term_step` terms apart.
template <class T>
struct Reader {
  using W = Wide<T>;
  static constexpr int kLoads = Tile<W>::kLoads, kSize = Tile<W>::kSize;
  const T* from;         // the first element of the next slice
  std::int64_t step;     // in memory, between two elements of a slice
  std::int64_t advance;  // in memory, between two slices
  int line, term, line_step, term_step;
  int lines_left;  // what the operand has from the first element on
  std::int64_t terms_left;

  __device__ __forceinline__ Reader(const Operand<T>& operand, std::int64_t first_line) {
    const int thread = static_cast<int>(threadIdx.x);
    const bool adjoin = operand.terms_adjoin;
    line = adjoin ? thread / kDepth : thread % kSize;
    term = adjoin ? thread % kDepth : thread / kSize;
    line_step = adjoin ? kThreads / kDepth : 0;
    term_step = adjoin ? 0 : kThreads / kSize;
    const std::int64_t l = first_line + line;
    from = adjoin ? operand.rows.row(l) + term : operand.rows.row(term) + l;
    step = operand.rows.stride * (line_step + term_step);
    advance = adjoin ? kDepth : kDepth * operand.rows.stride;
    const std::int64_t left = operand.lines - l;
    lines_left = static_cast<int>(left < kSize ? left : kSize);
    terms_left = operand.terms - term;
  }

  /// The next slice; zero beyond the operand.
  __device__ __forceinline__ void load(W (&to)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool inside = i * line_step < lines_left && i * term_step < terms_left;
      to[i] = inside ? widen(from[i * step]) : W{0};
    }
    from += advance;
    terms_left -= kDepth;
  }
  /// The loaded elements into shared memory, a row per term.
  __device__ __forceinline__ void store(const W (&loaded)[kLoads], W* slice) const {
    W* const to = slice + term * Tile<W>::kStride + line;
    const int apart = term_step * Tile<W>::kStride + line_step;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) to[i * apart] = loaded[i];
  }
};

/// Where a thread's i-th row or column lies within the tile.
template <class W>
__device__ __forceinline__ int place_of(int thread, int i) {
  constexpr int kRun = Tile<W>::kRun;
  return i / kRun * (Tile<W>::kSize / 2) + thread * kRun + i % kRun;
}

template <class W>
__device__ __forceinline__ void multiply_slices(const W* a, const W* b,
                                                W (&sums)[Tile<W>::kEach][Tile<W>::kEach]) {
  constexpr int kEach = Tile<W>::kEach, kRun = Tile<W>::kRun;
  const int row = static_cast<int>(threadIdx.x) / kSide;
  const int col = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int p = 0; p < kDepth; ++p) {
    Pack<W, kRun> x[2], y[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x[half] = load_pack<kRun>(a + p * Tile<W>::kStride + place_of<W>(row, half * kRun));
      y[half] = load_pack<kRun>(b + p * Tile<W>::kStride + place_of<W>(col, half * kRun));
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        sums[i][j] = multiply_add(x[i / kRun].x[i % kRun], y[j / kRun].x[j % kRun], sums[i][j]);
      }
    }
  }
}

template <class T, class C>
struct Product {
  Operand<T> a, b;
  Rows<C> c;
  const C* bias;
  const float* wide_bias;
  bool accumulate;

  __device__ __forceinline__ Wide<T> bias_of(std::int64_t j) const {
    return bias != nullptr ? static_cast<Wide<T>>(widen(bias[j])) : Wide<T>{wide_bias[j]};
  }
};

/// Adds the bias or c to the thread's sums and writes those that lie within c.
template <class T, class C, class W, int kEach>
__device__ __forceinline__ void store_tile(const Product<T, C>& product, std::int64_t first_row,
                                           std::int64_t first_col, W (&sums)[kEach][kEach]) {
  const int row = static_cast<int>(threadIdx.x) / kSide;
  const int col = static_cast<int>(threadIdx.x) % kSide;
  if (product.bias != nullptr || product.wide_bias != nullptr) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t n = first_col + place_of<W>(col, j);
      const W bias = n < product.b.lines ? product.bias_of(n) : W{0};
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums[i][j] += bias;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t m = first_row + place_of<W>(row, i);
    if (m >= product.a.lines) continue;
    C* const to = product.c.row(m);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::int64_t n = first_col + place_of<W>(col, j);
      if (n >= product.b.lines) continue;
      to[n] = narrow<C>(product.accumulate ? widen(to[n]) + sums[i][j] : sums[i][j]);
    }
  }
}

/// The tile of c whose first element this is, by all kThreads threads. Each sum is over the terms
/// in ascending order, with fused multiply-adds.
template <class T, class C>
__device__ __forceinline__ void multiply_tile(const Product<T, C>& product, std::int64_t first_row,
                                              std::int64_t first_col) {
  using W = Wide<T>;
  constexpr int kEach = Tile<W>::kEach, kLoads = Tile<W>::kLoads;
  __shared__ __align__(16) W a[2][kDepth * Tile<W>::kStride];
  __shared__ __align__(16) W b[2][kDepth * Tile<W>::kStride];

  W sums[kEach][kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) sums[i][j] = 0;
  }
  W next_a[kLoads], next_b[kLoads];
  Reader<T> reader_a(product.a, first_row), reader_b(product.b, first_col);
  reader_a.load(next_a);
  reader_b.load(next_b);
  int now = 0;
  for (std::int64_t term = 0; term < product.a.terms; term += kDepth, now ^= 1) {
    reader_a.store(next_a, a[now]);
    reader_b.store(next_b, b[now]);
    // One barrier per slice: who writes this slice again has passed the next barrier, before which
    // everybody has read it.
    __syncthreads();
    if (term + kDepth < product.a.terms) {
      reader_a.load(next_a);
      reader_b.load(next_b);
    }
    multiply_slices<W>(a[now], b[now], sums);
  }
  store_tile(product, first_row, first_col, sums);
}

}  // namespace llmtrain::kernels::cuda::plain_tile
