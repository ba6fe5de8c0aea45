// Which product multiplies what: the library's for fp32, bf16 and fp16, ours for everything else,
// and where results may not depend on the number of rows.
#include "kernels/code_matmul.hpp"
#include "kernels/cuda/library_matmul.hpp"
#include "kernels/cuda/matmul_plain.hpp"
#include "kernels/cuda/rows.hpp"
#include "lib/base/log.hpp"

namespace llmtrain::kernels::cuda {

namespace {

bool say_once_that_ours_is_taken(const Matmul& mm) {
  const std::string version = product_library_version();
  log::info("{} for some products, such as [{}, {}] x [{}, {}] in {}: these run in our own, slower",
            version.empty() ? "this build has no cuBLASLt"
                            : fmt::format("cuBLASLt {} has no algorithm", version),
            mm.m(), mm.k(), mm.k(), mm.n(), to_string(mm.a.dtype));
  return true;
}

bool say_once_that_an_activation_runs_apart(const Matmul& mm) {
  log::info(
      "no library takes the activation behind products such as [{}, {}] x [{}, {}] in {}: it runs "
      "in a kernel of its own",
      mm.m(), mm.k(), mm.k(), mm.n(), to_string(mm.a.dtype));
  return true;
}

void matmul(const KernelCtx& ctx, const Matmul& mm, const View& workspace) {
  if (mm.m() == 0 || mm.n() == 0) return;
  const bool for_library = mm.a.dtype != DType::f64 && ctx.determinism != Determinism::layout;
  const bool tried = for_library && mm.k() > 0;
  if (tried && library_matmul(ctx, mm, workspace)) return;
  if (mm.epilogue != ProductEpilogue::none) {
    if (tried) {
      [[maybe_unused]] static const bool said = say_once_that_an_activation_runs_apart(mm);
    }
    matmul(ctx, without_epilogue(mm), workspace);
    return run_epilogue(ctx, mm);
  }
  if (tried) {
    [[maybe_unused]] static const bool said = say_once_that_ours_is_taken(mm);
  }
  plain_matmul(ctx, mm);
}

bool say_once_that_ours_is_taken(const CodeMatmul& mm) {
  const std::string version = product_library_version();
  log::warning(
      "{} for products of {} and {}, such as [{}, {}] x [{}, {}]: these run in our own, which is "
      "for proofs, and slow (precision.fp8.products: bf16 does without)",
      version.empty() ? "this build has no cuBLASLt"
                      : fmt::format("cuBLASLt {} has no algorithm", version),
      mm.a_format.name, mm.b_format.name, mm.m(), mm.k(), mm.k(), mm.n());
  return true;
}

void code_matmul(const KernelCtx& ctx, const CodeMatmul& mm, const View& workspace) {
  if (mm.m() == 0 || mm.n() == 0) return;
  const bool tried = ctx.determinism != Determinism::layout && mm.k() > 0;
  if (tried && library_matmul(ctx, mm, workspace)) return;
  if (tried) {
    [[maybe_unused]] static const bool said = say_once_that_ours_is_taken(mm);
  }
  plain_code_matmul(ctx, mm);
}

}  // namespace

void add_matmul_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Matmul, matmul>());
  rows.push_back(row_of<CodeMatmul, code_matmul>());
}

}  // namespace llmtrain::kernels::cuda
