#pragma once
/// What gemm.cpp gives to the parts of the product that are compiled per instruction set, in
/// gemm_tile.cpp and gemm_bf16_tile.cpp.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::fast {

/// A matrix as lines (rows of op(a), columns of op(b)) along which the product sums.
struct GemmOperand {
  const std::byte* data;
  DType dtype;                // fp32 | bf16 | fp16
  std::int64_t line_stride;   // elements from line to line
  std::int64_t depth_stride;  // elements from one of a line to the next

  static GemmOperand rows_of(const View& a, bool transposed) {
    return {a.as<const std::byte>(), a.dtype, transposed ? 1 : a.row_stride,
            transposed ? a.row_stride : 1};
  }
  static GemmOperand columns_of(const View& b, bool transposed) {
    return {b.as<const std::byte>(), b.dtype, transposed ? b.row_stride : 1,
            transposed ? 1 : b.row_stride};
  }
  GemmOperand at(std::int64_t line, std::int64_t depth) const {
    const auto offset = static_cast<std::uint64_t>(line * line_stride + depth * depth_stride);
    return {data + offset * size_of(dtype), dtype, line_stride, depth_stride};
  }
};

/// to[rows, cols] = a b (+ from) (+ to) (+ bias), a and b packed in panels, sums in FP32.
struct GemmBlock {
  std::int64_t rows, cols;
  std::int64_t depth;  // as packed
  const std::byte* a;
  const std::byte* b;
  const float* from = nullptr;  // sums over what came before, or null
  std::int64_t from_stride = 0;
  void* to;
  DType to_dtype;  // fp32 | bf16 | fp16
  std::int64_t to_stride;
  bool add_to;
  const float* bias;  // one per column, or null
};

/// Inner loops, and the panels that they read. Blocks of kGemmRows x max_depth and kGemmCols x
/// max_depth are whole panels and take no more bytes than kGemmDepth floats a line.
struct GemmKernel {
  std::int64_t panel_rows, panel_cols;  // lines of a panel of a and of b
  std::int64_t max_depth;               // of a piece of the sum
  std::int64_t depth_unit;  // elements of a line side by side; the last are filled up with zeros
  std::int64_t element_bytes;

  /// Copies `lines` lines of `depth` elements into panels: elements [p, p + depth_unit) of all
  /// lines of a panel one after the other. The last panel is filled up with zeros.
  using Pack = void (*)(const GemmOperand& from, std::int64_t lines, std::int64_t depth,
                        void* panels);
  Pack pack_rows, pack_columns;
  void (*multiply)(const GemmBlock& block);

  std::int64_t packed_depth(std::int64_t depth) const {
    return (depth + depth_unit - 1) / depth_unit * depth_unit;
  }
  /// Bytes of `lines` packed lines; also the place of line `lines`, the first one of a panel.
  std::int64_t bytes(std::int64_t lines, std::int64_t depth) const {
    return lines * packed_depth(depth) * element_bytes;
  }
};

/// Widens bf16 and fp16 to FP32 as it packs.
const GemmKernel& gemm_fp32_kernel();

/// Multiplies pairs of bf16; null where the processor does not.
const GemmKernel* gemm_bf16_kernel();

}  // namespace llmtrain::kernels::fast
