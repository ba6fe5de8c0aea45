#pragma once
/// The table of quantizers: a number format, the blocks that share a scale, and what the scale
/// follows from. A new one is a row, a new format a NumberFormat, a new rule a line of
/// ScaleFromAmax; kernels take all of it as data.

#include <span>

#include "kernels/quantize/scale_rule.hpp"

namespace llmtrain::kernels {

/// Elements of a matrix that share a scale; the last blocks of a matrix may be shorter. 0: all.
struct BlockShape {
  std::int64_t rows = 0, cols = 0;

  constexpr std::int64_t rows_of(std::int64_t matrix_rows) const {
    return rows == 0 ? matrix_rows : rows;
  }
  constexpr std::int64_t cols_of(std::int64_t matrix_cols) const {
    return cols == 0 ? matrix_cols : cols;
  }
  /// Blocks that divide a matrix; its scales are [down(rows), across(cols)]. One even where the
  /// matrix is empty and the block is all of it.
  constexpr std::int64_t down(std::int64_t matrix_rows) const {
    return rows == 0 ? 1 : (matrix_rows + rows - 1) / rows;
  }
  constexpr std::int64_t across(std::int64_t matrix_cols) const {
    return cols == 0 ? 1 : (matrix_cols + cols - 1) / cols;
  }
};

/// amax: the block's own largest magnitude; history: those of the tensor in earlier steps.
enum class ScaleSource : std::uint8_t { amax, history };

struct Quantizer {
  std::string_view name;
  NumberFormat format;
  BlockShape block;
  ScaleSource source = ScaleSource::amax;
  /// Of scales that follow from an amax.
  bool power_of_two = false;
};

/// All of them.
std::span<const Quantizer> quantizers();
/// InternalError when there is none of that name.
const Quantizer& find_quantizer(std::string_view name);

}  // namespace llmtrain::kernels
