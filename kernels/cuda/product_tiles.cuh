#pragma once
/// What kernels of products share: how they see operands, and in which order they compute tiles.

#include "kernels/cuda/element.cuh"

namespace llmtrain::kernels::cuda {

/// An operand as `lines` rows or columns of c times k terms, wherever its terms lie.
template <class T>
struct Operand {
  Rows<const T> rows;
  std::int64_t lines;
  std::int64_t terms;
  /// Terms of a line are neighbours in memory; otherwise lines of a term are.
  bool terms_adjoin;
};

/// Rows of tiles that blocks finish before they go on to the next columns: what they read of b
/// stays in the L2 cache meanwhile.
inline constexpr std::int64_t kTileRows = 8;

/// A tile's row and column in a table of tiles.
struct TilePlace {
  std::int64_t row, col;
};

/// Tiles are numbered down groups of kTileRows rows of tiles.
__device__ __forceinline__ TilePlace tile_of(std::int64_t number, std::int64_t tiles_m,
                                             std::int64_t tiles_n) {
  const std::int64_t group = number / (kTileRows * tiles_n);
  const std::int64_t left = tiles_m - group * kTileRows;
  const std::int64_t rows = left < kTileRows ? left : kTileRows;
  const std::int64_t within = number - group * kTileRows * tiles_n;
  return {group * kTileRows + within % rows, within / rows};
}

}  // namespace llmtrain::kernels::cuda
