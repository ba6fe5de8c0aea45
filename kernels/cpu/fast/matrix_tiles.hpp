#pragma once
/// Parts of matrices: the unit of work of kernels that have values of rows and of columns.

#include <limits>

#include "kernels/cpu/fast/segments.hpp"
#include "kernels/factored.hpp"

namespace llmtrain::kernels::fast {

/// Columns of a tile, at most: their values fit in the innermost cache.
inline constexpr std::int64_t kTileColumns = kPass;

/// Neighbouring rows and columns of one matrix.
struct Tile {
  Matrices shape;
  std::int64_t matrix, first_row, rows, first_column, columns;

  /// Of a view of all elements: the tile's row i.
  template <class T>
  T* row(const View& elements, std::int64_t i) const {
    return elements.as<T>() + (matrix * shape.rows + first_row + i) * shape.columns + first_column;
  }
  /// Of a view of one value for each row, or each column: those of the tile.
  template <class T>
  T* of_rows(const View& values) const {
    return values.as<T>() + matrix * shape.rows + first_row;
  }
  template <class T>
  T* of_columns(const View& values) const {
    return values.as<T>() + matrix * shape.columns + first_column;
  }
};

/// Matrices cut into tiles of so many rows and columns, or fewer at the ends.
class Tiles {
 public:
  Tiles(const Matrices& shape, std::int64_t rows, std::int64_t columns)
      : shape_(shape),
        rows_(std::clamp<std::int64_t>(rows, 1, shape.rows)),
        columns_(std::clamp<std::int64_t>(columns, 1, shape.columns)),
        down_((shape.rows + rows_ - 1) / rows_),
        across_((shape.columns + columns_ - 1) / columns_) {}

  std::int64_t count() const { return shape_.count * down_ * across_; }
  Tile operator[](std::int64_t i) const {
    const std::int64_t row = i / across_ % down_ * rows_, column = i % across_ * columns_;
    return {.shape = shape_,
            .matrix = i / across_ / down_,
            .first_row = row,
            .rows = std::min(rows_, shape_.rows - row),
            .first_column = column,
            .columns = std::min(columns_, shape_.columns - column)};
  }

 private:
  Matrices shape_;
  std::int64_t rows_, columns_, down_, across_;
};

/// Calls f(Tile) for tiles that cover the matrices, in parallel.
template <class F>
void parallel_tiles(int threads, const Matrices& shape, const F& f) {
  const std::int64_t columns = std::min(shape.columns, kTileColumns);
  const Tiles tiles(shape, kElementsPerBlock / columns, columns);
  parallel_blocks(threads, tiles.count(), 1, [&](std::int64_t i, std::int64_t) { f(tiles[i]); });
}

/// Whole columns, as many at once as leave something for every thread.
inline Tiles strips(const Matrices& shape, int threads) {
  constexpr std::int64_t kLeast = 128;
  const std::int64_t share = shape.count * shape.columns / std::max(1, threads);
  return {shape, shape.rows, std::clamp(share / kLeast * kLeast, kLeast, kTileColumns)};
}
/// Whole rows.
inline Tiles row_tiles(const Matrices& shape) {
  return {shape, kElementsPerBlock / shape.columns, shape.columns};
}

/// Calls f(matrix, offset in the pass, count) for the parts of a pass that are of one matrix of
/// `each` elements.
template <class F>
void for_matrices(const Segment& at, std::int64_t each, const F& f) {
  for (std::int64_t i = 0; i < at.count;) {
    const std::int64_t matrix = (at.col + i) / each;
    const std::int64_t count = std::min(at.count - i, (matrix + 1) * each - at.col - i);
    f(matrix, i, count);
    i += count;
  }
}

/// In the place of the bound of a row that has none.
inline constexpr float kNoBound = std::numeric_limits<float>::infinity();

}  // namespace llmtrain::kernels::fast
