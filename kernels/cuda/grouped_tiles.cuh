#pragma once
/// Which tile of which expert a block computes. The host knows how many rows all experts have
/// together and no more, so it launches as many blocks as there may be tiles of rows; blocks
/// without one end. Rows that no expert has are those of one more, whose products have no terms.

#include <algorithm>

#include "kernels/cuda/product_tiles.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/experts.hpp"

namespace llmtrain::kernels::cuda {

/// Rows of one expert; of none where there is no such tile.
struct TileRows {
  int expert, begin, end;
};

/// The `number`-th tile of at most `size` rows, counted through the experts, and behind them those
/// of nobody, up to `rows`. Whole warps must come; every lane gets it.
__device__ __forceinline__ TileRows rows_of_tile(const std::int32_t* offsets, int experts, int rows,
                                                 int number, int size) {
  constexpr unsigned kAll = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int first = 0; first <= experts; first += 32) {
    const int e = first + lane;
    const int begin = e <= experts ? offsets[e] : rows;
    const int end = e < experts ? offsets[e + 1] : rows;
    const int tiles = (end - begin + size - 1) / size;
    const int through = sum_through_lane(tiles);
    const unsigned holds = __ballot_sync(kAll, number < through);
    if (holds != 0) {
      const int from = __ffs(static_cast<int>(holds)) - 1;
      const int tile = number - __shfl_sync(kAll, through - tiles, from);
      const int tile_begin = __shfl_sync(kAll, begin, from) + tile * size;
      return {first + from, tile_begin, min(tile_begin + size, __shfl_sync(kAll, end, from))};
    }
    number -= __shfl_sync(kAll, through, 31);
  }
  return {experts, rows, rows};
}

/// How a product sees its operands: lines of c's rows and of its columns times terms.
template <class T, class C>
struct ExpertProduct {
  Operand<T> a, b;
  Rows<C> c;
  /// Of the tile, among the lines.
  std::int64_t first_row, first_col;
};

/// GroupedMatmul as kernels see it, in tiles of kSize x kSize.
template <class T, class C, GroupedProduct product, int kSize>
struct GroupedOperands {
  static constexpr bool kOfWeight = product == GroupedProduct::weight_grad;
  /// Whether the terms of a, and of b, are neighbours in memory.
  static constexpr bool kAdjoinA = !kOfWeight, kAdjoinB = product == GroupedProduct::forward;

  const std::int32_t* offsets;
  int experts, rows;
  std::int64_t out, in;
  Rows<const T> a, b;
  Rows<C> c;
  bool accumulate;
  std::int64_t tiles_m, tiles_n;  // of weight_grad those of one expert

  explicit GroupedOperands(const GroupedMatmul& op)
      : offsets(op.offsets.as<const std::int32_t>()),
        experts(static_cast<int>(op.experts())),
        rows(static_cast<int>(op.rows())),
        out(op.out()),
        in(op.in()),
        a(op.a),
        b(op.b),
        c(op.c),
        accumulate(kOfWeight || op.accumulate) {
    const std::int64_t most = ceil_div(rows, kSize) + experts;  // of experts and nobody
    tiles_m = kOfWeight ? ceil_div(out, kSize) : std::min<std::int64_t>(most, rows);
    tiles_n = ceil_div(product == GroupedProduct::forward ? out : in, kSize);
  }

  unsigned blocks() const {
    return static_cast<unsigned>(tiles_m * tiles_n * (kOfWeight ? experts : 1));
  }

  /// False where the block has nothing to do.
  __device__ __forceinline__ bool find(ExpertProduct<T, C>& found) const {
    if constexpr (kOfWeight) {
      return find_weights(found);
    } else {
      return find_rows(found);
    }
  }

 private:
  __device__ __forceinline__ bool find_rows(ExpertProduct<T, C>& found) const {
    const TilePlace place = tile_of(blockIdx.x, tiles_m, tiles_n);
    const TileRows tile = rows_of_tile(offsets, experts, rows, static_cast<int>(place.row), kSize);
    const bool nobodys = tile.expert == experts;
    if (tile.begin == tile.end || (nobodys && accumulate)) return false;
    const std::int64_t terms = nobodys ? 0 : kAdjoinB ? in : out;
    found.a = Operand<T>{a, tile.end - tile.begin, terms, kAdjoinA};
    found.b = Operand<T>{b, kAdjoinB ? out : in, terms, kAdjoinB};
    found.c = c;
    found.first_row = 0;
    found.first_col = place.col * kSize;
    found.a.rows.data = a.row(tile.begin);
    found.c.data = c.row(tile.begin);
    if (!nobodys) found.b.rows.data = b.row(tile.expert * out);
    return true;
  }
  __device__ __forceinline__ bool find_weights(ExpertProduct<T, C>& found) const {
    const std::int64_t tiles = tiles_m * tiles_n;
    const std::int64_t expert = blockIdx.x / tiles;
    const std::int32_t begin = offsets[expert], end = offsets[expert + 1];
    if (begin == end) return false;
    const TilePlace place = tile_of(blockIdx.x - expert * tiles, tiles_m, tiles_n);
    found.a = Operand<T>{a, out, end - begin, kAdjoinA};
    found.b = Operand<T>{b, in, end - begin, kAdjoinB};
    found.c = c;
    found.first_row = place.row * kSize;
    found.first_col = place.col * kSize;
    found.a.rows.data = a.row(begin);
    found.b.rows.data = b.row(begin);
    found.c.data = c.row(expert * out);
    return true;
  }
};

/// Calls f.operator()<product>() for the product of a launch.
template <class F>
void with_product(GroupedProduct product, const F& f) {
  switch (product) {
    case GroupedProduct::forward:
      return f.template operator()<GroupedProduct::forward>();
    case GroupedProduct::input_grad:
      return f.template operator()<GroupedProduct::input_grad>();
    case GroupedProduct::weight_grad:
      return f.template operator()<GroupedProduct::weight_grad>();
  }
}

}  // namespace llmtrain::kernels::cuda
