#include "kernels/router.hpp"

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/router_row.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::fast {

namespace {

constexpr std::int64_t kRows = 64;

void route_tokens(const KernelCtx& ctx, const RouteTokens& op, const View& workspace) {
  if (op.logits.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.logits.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    RouterRow<float> row(op.rule, op.logits.cols());
    for (std::int64_t i = begin; i < end; ++i) route_row(op, i, row);
  });
}

void route_tokens_backward(const KernelCtx& ctx, const RouteTokensBackward& op,
                           const View& workspace) {
  if (op.logits.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.logits.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    RouterRow<float> row(op.rule, op.logits.cols());
    for (std::int64_t i = begin; i < end; ++i) route_row_backward(op, i, row);
  });
}

}  // namespace

void add_router_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RouteTokens, route_tokens>());
  rows.push_back(row_of<RouteTokensBackward, route_tokens_backward>());
}

}  // namespace llmtrain::kernels::fast
