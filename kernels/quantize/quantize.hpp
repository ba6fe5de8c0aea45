#pragma once
/// Quantization in software, bit for bit the same on every device. Operands are matrices of fp32,
/// bf16 or fp16 (x, y) whose rows may lie apart; codes are uint8, one a byte, scales FP32, dense,
/// one for each block in the order [BlockShape::down(rows), BlockShape::across(cols)]. All
/// arithmetic is FP32.

#include "kernels/kernel.hpp"
#include "kernels/quantize/quantizer.hpp"
#include "kernels/step_scalars.hpp"
#include "lib/base/philox.hpp"

namespace llmtrain::kernels {

/// amax[b] = max(amax[b], the largest magnitude in block b of x). NaNs are left out (their codes
/// say that they were there). amax must hold numbers that are not negative.
struct BlockAmax {
  static constexpr std::string_view name = "block_amax";
  View x, amax;
  BlockShape block;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// The scales of blocks from their largest magnitudes (scale_of_amax()). All FP32, of one size.
struct ScaleFromAmax {
  static constexpr std::string_view name = "scale_from_amax";
  View amax, scale, scale_inv;
  float max = 448;          // of the number format
  float largest = kMaxF32;  // scale, in place of an infinity: the largest number of x's type
  bool power_of_two = false;
  void check() const;
  Cost cost() const;
  DType dtype() const { return amax.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {amax.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  constexpr Scale of(float amax_of_block) const {
    return scale_of_amax(max, amax_of_block, largest, power_of_two);
  }
};

/// The scales of tensors from the histories of their largest magnitudes, once a step
/// (scale_of_history()). Row i of `history`, FP32 [tensors, length], strided, has what amax[i] was
/// in earlier steps, the oldest first: behind the call the oldest is gone and amax[i] is the last.
/// The scale follows from amax[i] and the history as the call found it. amax, scale, scale_inv and
/// max, the formats' largest numbers: FP32 [tensors], dense. With a `decision` (UpdateDecision)
/// that does not apply nothing is written: what a step has seen that is given up shapes no later
/// one.
struct RollAmaxHistory {
  static constexpr std::string_view name = "roll_amax_history";
  View amax;
  View history;  // may be absent: a length of 0
  View scale, scale_inv, max;
  View decision;  // may be absent
  int margin = 0;
  HistoryAmax algorithm = HistoryAmax::max;
  void check() const;
  Cost cost() const;
  DType dtype() const { return amax.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {amax.numel(), length()}; }
  std::int64_t length() const { return history.defined() ? history.cols() : 0; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// One tensor's, with its row of `length` earlier steps. Constexpr, so that device code has the
  /// very same operations.
  constexpr Scale advance(float recent, float* earlier, std::int64_t length, float max_of_format,
                          float old_scale) const {
    float largest = recent;
    for (std::int64_t i = 0; i < length; ++i) {
      const float x = earlier[i];
      if (x > largest || largest != largest) largest = x;
      if (i > 0) earlier[i - 1] = x;
    }
    if (length > 0) earlier[length - 1] = recent;
    const bool all = algorithm == HistoryAmax::max;
    return scale_of_history(max_of_format, all ? largest : recent, margin, old_scale);
  }
};

/// How Quantize rounds: to nearest, ties to even; or by chance, so that the mean over many
/// roundings is the number itself, with the word of Philox(key, step) at an element's index,
/// which is row_id[row] * width + first_col + col.
struct QuantizeRounding {
  bool stochastic = false;
  PhiloxKey key;
  std::uint64_t step = 0;
  /// Where given (StepScalars), its step counts, as it is when the kernel runs.
  View scalars;
  /// int64 [rows]; absent: the row's number.
  View row_id;
  /// Columns of the whole matrix, of which x has those from first_col on; 0: x's own.
  std::int64_t width = 0;
  std::int64_t first_col = 0;

  std::uint64_t step_now() const { return kernels::step_now(scalars, step); }
};

/// The code of x * scale for every element, and what it stands for.
///   codes  uint8; may be absent
///   transposed  uint8 [columns, rows], the same codes; may be absent; of one scale for all of x,
///          rounded to nearest
///   y      value of the code * scale_inv, rounded to y's type; may be absent, and may be x
///   saturated  FP64 [1], where given: how many elements were beyond limit_of() the format is added
struct Quantize {
  static constexpr std::string_view name = "quantize";
  View x, scale, scale_inv;
  View codes, y;
  View transposed;
  View saturated;
  NumberFormat format;
  BlockShape block;
  QuantizeRounding rounding;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols(), rounding.stochastic}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// Index of the first element of a row, for a rounding by chance.
  std::uint64_t index_of_row(std::int64_t row) const {
    const std::int64_t width = rounding.width == 0 ? x.cols() : rounding.width;
    const View& ids = rounding.row_id;
    const std::int64_t id = ids.defined() ? ids.as<std::int64_t>()[row] : row;
    return static_cast<std::uint64_t>(id * width + rounding.first_col);
  }
};

/// y = value of the code * scale_inv, rounded to y's type.
struct Dequantize {
  static constexpr std::string_view name = "dequantize";
  View codes, scale_inv, y;
  NumberFormat format;
  BlockShape block;
  void check() const;
  Cost cost() const;
  DType dtype() const { return y.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {y.rows(), y.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// The largest finite number of fp32, bf16 or fp16: ScaleFromAmax::largest.
float largest_of(DType dtype);

}  // namespace llmtrain::kernels
