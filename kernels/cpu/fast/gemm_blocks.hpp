#pragma once
/// What gemm.cpp gives to the parts of the product that are compiled per instruction set, in
/// gemm_tile.cpp.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels::fast {

/// Rows of the kernel's tile of c: panels of a have as many lines.
inline constexpr std::int64_t kPanelRows = 6;

/// A matrix as lines (rows of op(a), columns of op(b)) along which the product sums.
struct GemmOperand {
  const std::byte* data;
  DType dtype;                // fp32 | bf16
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
  std::int64_t rows, cols, depth;
  const float* a;
  const float* b;
  const float* from = nullptr;  // sums over what came before, or null
  std::int64_t from_stride = 0;
  void* to;
  DType to_dtype;  // fp32 | bf16
  std::int64_t to_stride;
  bool add_to;
  const float* bias;  // one per column, or null
};

/// Lines of a panel of b.
std::int64_t gemm_panel_cols();

/// Copies `lines` lines of `depth` elements into panels, in FP32: element p of all lines of a panel
/// side by side. The last panel is filled up with zeros.
void gemm_pack_rows(const GemmOperand& a, std::int64_t lines, std::int64_t depth, float* panels);
void gemm_pack_columns(const GemmOperand& b, std::int64_t lines, std::int64_t depth, float* panels);

void gemm_multiply(const GemmBlock& block);

}  // namespace llmtrain::kernels::fast
