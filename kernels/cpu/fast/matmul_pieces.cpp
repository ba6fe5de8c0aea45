#include "kernels/cpu/fast/matmul_pieces.hpp"

#include <algorithm>

#include "kernels/cpu/fast/gemm.hpp"
#include "kernels/cpu/fast/onednn.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul_workspace.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::fast {

namespace {

/// Rows [row, row + rows) and columns [col, col + cols) of a matrix.
View block(const View& matrix, std::int64_t row, std::int64_t rows, std::int64_t col,
           std::int64_t cols) {
  const auto offset = static_cast<std::uint64_t>(row * matrix.row_stride + col);
  return {matrix.as<std::byte>() + offset * size_of(matrix.dtype),
          matrix.dtype,
          {rows, cols},
          matrix.row_stride};
}

/// Rows and columns of op(matrix), where the matrix may be stored transposed.
View block_of_op(const View& matrix, bool transposed, std::int64_t row, std::int64_t rows,
                 std::int64_t col, std::int64_t cols) {
  return transposed ? block(matrix, col, cols, row, rows) : block(matrix, row, rows, col, cols);
}

/// One call's longest sum. oneDNN's blocking suits no longer ones: the input gradient of a GPT-2
/// head (1024 x 768, k = 50304, FP32, 2 threads) runs at 177 GFLOP/s whole and at 205 in pieces.
constexpr std::int64_t kMaxDepth = 16384;

View tile(void* data, const Shape& shape) {
  return {data, DType::f32, shape, tile_stride(shape.cols())};
}

void convert(const KernelCtx& ctx, const View& x, const View& y, bool accumulate) {
  const ScaleCast cast{x, y, 1, accumulate};
  cpu_table().find(ScaleCast::name)(ctx, &cast, {});
}

}  // namespace

void matmul_in_depth(const KernelCtx& ctx, const Matmul& mm, void* scratch,
                     std::uint64_t scratch_bytes) {
  if (mm.a.dtype == DType::f32 && !onednn_keeps_to_its_scratch() &&
      (!mm.bias.defined() || mm.bias.dtype == DType::f32)) {
    require(gemm_scratch_bytes(ctx.threads) <= scratch_bytes, "gemm wants more scratch");
    return gemm(mm, ctx.threads, scratch);
  }
  const bool deep = mm.k() > kMaxDepth;
  if (!deep && onednn_matmul(mm, ctx.threads, scratch, scratch_bytes)) return;
  require(mm.k() > kTileDepth, "oneDNN wants more than {} bytes for [{}, {}] x [{}, {}]",
          scratch_bytes, mm.m(), mm.k(), mm.k(), mm.n());
  const std::int64_t step = deep ? kMaxDepth : kTileDepth;
  for (std::int64_t p = 0; p < mm.k(); p += step) {
    const std::int64_t depth = std::min(step, mm.k() - p);
    Matmul part = mm;
    part.a = block_of_op(mm.a, mm.transpose_a, 0, mm.m(), p, depth);
    part.b = block_of_op(mm.b, mm.transpose_b, p, depth, 0, mm.n());
    if (p > 0) {
      part.accumulate = true;
      part.bias = {};
    }
    matmul_in_depth(ctx, part, scratch, scratch_bytes);
  }
}

namespace {

/// c's tile at (i, j): bf16 operands are widened tile by tile and multiplied in FP32.
void multiply_tile(const KernelCtx& ctx, const Matmul& mm, std::byte* workspace, std::int64_t i,
                   std::int64_t j) {
  const MatmulWorkspace layout = matmul_workspace(mm, ctx.threads);
  const std::int64_t rows = std::min(kTileRows, mm.m() - i);
  const std::int64_t cols = std::min(kTileCols, mm.n() - j);
  Matmul product;
  product.transpose_a = mm.transpose_a;
  product.transpose_b = mm.transpose_b;
  product.c = tile(workspace + layout.c, {rows, cols});
  for (std::int64_t p = 0; p < mm.k(); p += kTileDepth) {
    const std::int64_t depth = std::min(kTileDepth, mm.k() - p);
    const View a = block_of_op(mm.a, mm.transpose_a, i, rows, p, depth);
    const View b = block_of_op(mm.b, mm.transpose_b, p, depth, j, cols);
    product.a = tile(workspace + layout.a, a.shape);
    product.b = tile(workspace + layout.b, b.shape);
    product.accumulate = p > 0;
    convert(ctx, a, product.a, false);
    convert(ctx, b, product.b, false);
    matmul_in_depth(ctx, product, workspace, layout.scratch_bytes);
  }
  if (mm.bias.defined()) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const View bias = block(mm.bias, 0, 1, j, cols);
      convert(ctx, bias, block(product.c, r, 1, 0, cols), true);
    }
  }
  convert(ctx, product.c, block(mm.c, i, rows, j, cols), mm.accumulate);
}

}  // namespace

void matmul_in_tiles(const KernelCtx& ctx, const Matmul& mm, std::byte* workspace) {
  for (std::int64_t i = 0; i < mm.m(); i += kTileRows) {
    for (std::int64_t j = 0; j < mm.n(); j += kTileCols) multiply_tile(ctx, mm, workspace, i, j);
  }
}

}  // namespace llmtrain::kernels::fast
