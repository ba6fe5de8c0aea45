#include "kernels/matmul.hpp"

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/column_sum.hpp"
#include "kernels/cpu/fast/gemm.hpp"
#include "kernels/cpu/rows.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::kernels::fast {

namespace {

bool say_once_that_bf16_is_emulated() {
  log::info("this processor has no bf16 instructions: bf16 products run in fp32, at its speed");
  return true;
}

bool say_once_that_fp16_is_emulated() {
  log::info("a CPU's fp16 products run in fp32, at its speed");
  return true;
}

void matmul(const KernelCtx& ctx, const Matmul& mm, const View& workspace) {
  if (mm.epilogue != ProductEpilogue::none) {
    matmul(ctx, without_epilogue(mm), workspace);
    return run_epilogue(ctx, mm);
  }
  if (mm.a.dtype == DType::f64 || mm.m() == 0 || mm.n() == 0 || mm.k() == 0) {
    return run_reference(ctx, mm, workspace);
  }
  if (mm.a.dtype == DType::bf16 && !gemm_multiplies_bf16()) {
    [[maybe_unused]] static const bool said = say_once_that_bf16_is_emulated();
  }
  if (mm.a.dtype == DType::f16) {
    [[maybe_unused]] static const bool said = say_once_that_fp16_is_emulated();
  }
  gemm(mm, ctx.threads, workspace.data);
}

}  // namespace

void add_matmul_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Matmul, matmul>());
  add_column_sum_row(rows);
}

}  // namespace llmtrain::kernels::fast
