#include "kernels/matmul.hpp"

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/column_sum.hpp"
#include "kernels/cpu/fast/gemm.hpp"
#include "kernels/cpu/fast/onednn.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/matmul_workspace.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::kernels::fast {

namespace {

/// oneDNN's longest sum in one call. Its blocking suits no longer ones: the input gradient of a
/// GPT-2 head (1024 x 768, k = 50304, FP32, 2 threads) runs at 177 GFLOP/s whole and at 205 in
/// pieces.
constexpr std::int64_t kMaxDepth = 16384;
/// Pieces of sums for which oneDNN would keep a whole c per thread.
constexpr std::int64_t kShortDepth = 1024;

/// The product's terms [p, p + depth), added to c but for the first.
Matmul piece_of(const Matmul& mm, std::int64_t p, std::int64_t depth) {
  const auto terms = [&](const View& x, bool along_rows) {
    const auto offset = static_cast<std::uint64_t>(along_rows ? p * x.row_stride : p);
    const Shape shape = along_rows ? Shape{depth, x.cols()} : Shape{x.rows(), depth};
    return View{x.as<std::byte>() + offset * size_of(x.dtype), x.dtype, shape, x.row_stride};
  };
  Matmul piece = mm;
  piece.a = terms(mm.a, mm.transpose_a);
  piece.b = terms(mm.b, !mm.transpose_b);
  if (p > 0) {
    piece.accumulate = true;
    piece.bias = {};
  }
  return piece;
}

bool say_once_that_ours_is_taken(const Matmul& mm) {
  log::info(
      "oneDNN has no product within the planned memory for some shapes, such as [{}, {}] x [{}, "
      "{}] "
      "in {}: these run in our own fp32 product",
      mm.m(), mm.k(), mm.k(), mm.n(), to_string(mm.a.dtype));
  return true;
}

/// By oneDNN, whole or in pieces, as far as it keeps to its scratch memory. The memory is that of
/// the whole product, whatever a piece could use.
void multiply(const KernelCtx& ctx, const Matmul& mm, void* memory, const MatmulWorkspace& layout) {
  const bool deep = mm.c.dtype == DType::f32 && mm.k() > kMaxDepth;
  if (!deep && onednn_matmul(mm, ctx.threads, memory, layout.scratch_bytes)) return;
  if (mm.c.dtype != DType::f32 || mm.k() <= kShortDepth) {
    [[maybe_unused]] static const bool said = say_once_that_ours_is_taken(mm);
    return gemm(mm, ctx.threads, memory, layout);
  }
  const std::int64_t step = deep ? kMaxDepth : kShortDepth;
  for (std::int64_t p = 0; p < mm.k(); p += step) {
    multiply(ctx, piece_of(mm, p, std::min(step, mm.k() - p)), memory, layout);
  }
}

bool say_once_that_bf16_is_emulated() {
  log::info("this processor has no bf16 instructions: bf16 products run in fp32, at its speed");
  return true;
}

void matmul(const KernelCtx& ctx, const Matmul& mm, const View& workspace) {
  if (mm.a.dtype == DType::f64 || mm.m() == 0 || mm.n() == 0 || mm.k() == 0) {
    return run_reference(ctx, mm, workspace);
  }
  auto* const memory = workspace.as<std::byte>();
  const MatmulWorkspace layout = matmul_workspace(mm, ctx.threads);
  if (mm.a.dtype == DType::f32) return gemm(mm, ctx.threads, memory, layout);
  if (onednn_multiplies_bf16()) return multiply(ctx, mm, memory, layout);
  [[maybe_unused]] static const bool said = say_once_that_bf16_is_emulated();
  gemm(mm, ctx.threads, memory, layout);
}

}  // namespace

void add_matmul_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Matmul, matmul>());
  add_column_sum_row(rows);
}

}  // namespace llmtrain::kernels::fast
