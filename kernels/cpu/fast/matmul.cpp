#include "kernels/matmul.hpp"

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/column_sum.hpp"
#include "kernels/cpu/fast/matmul_pieces.hpp"
#include "kernels/cpu/fast/onednn.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/matmul_workspace.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::kernels::fast {

namespace {

bool say_once_that_bf16_is_emulated() {
  log::info("this processor has no bf16 instructions: bf16 products run in fp32, at its speed");
  return true;
}

void matmul(const KernelCtx& ctx, const Matmul& mm, const View& workspace) {
  if (mm.a.dtype == DType::f64 || mm.m() == 0 || mm.n() == 0 || mm.k() == 0) {
    return run_reference(ctx, mm, workspace);
  }
  auto* const memory = workspace.as<std::byte>();
  const std::uint64_t scratch_bytes = matmul_workspace(mm, ctx.threads).scratch_bytes;
  if (mm.a.dtype == DType::bf16 && !onednn_multiplies_bf16()) {
    [[maybe_unused]] static const bool said = say_once_that_bf16_is_emulated();
    matmul_in_tiles(ctx, mm, memory);
  } else if (mm.c.dtype == DType::f32) {
    matmul_in_depth(ctx, mm, memory, scratch_bytes);
  } else if (!onednn_matmul(mm, ctx.threads, memory, scratch_bytes)) {
    matmul_in_tiles(ctx, mm, memory);
  }
}

}  // namespace

void add_matmul_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Matmul, matmul>());
  add_column_sum_row(rows);
}

}  // namespace llmtrain::kernels::fast
