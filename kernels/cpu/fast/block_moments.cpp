#include "kernels/block_moments.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/block_moments.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/fast/run_sums.hpp"
#include "kernels/cpu/fast/squares-inl.h"
#include "kernels/cpu/rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

double squares_of_pass(const View& g, const Segment& at) {
  return squared_norm(at.of<float>(g), at.count);
}

/// The elements of one pass that are of one block.
void block_adam_run(const BlockAdamScalars<float>& s, float step_of_block, std::int64_t count,
                    float* parameter, const float* gradient, float* m) {
  const V grad_scale = constant(s.grad_scale);
  const V before = constant(s.kept_before), after = constant(s.kept_after);
  const V beta1 = constant(s.beta1);
  const V one_minus_beta1 = constant(s.one_minus_beta1);
  const V step = constant(step_of_block);
  for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V g = hn::Mul(load(gradient + i, lanes), grad_scale);
    const V m_new = hn::Add(hn::Mul(beta1, load(m + i, lanes)), hn::Mul(one_minus_beta1, g));
    const V kept = hn::Mul(load(parameter + i, lanes), before);
    store(hn::Mul(hn::Sub(kept, hn::Mul(step, m_new)), after), parameter + i, lanes);
    store(m_new, m + i, lanes);
  });
}

void block_adam_update(const BlockAdamUpdate& op, const BlockAdamScalars<float>& s,
                       const Segment& at) {
  Masters masters(op.to, s.update, at);
  const float* gradient = at.of<float>(op.to.gradient);
  float* m = at.of<float>(op.m);
  for (std::int64_t i = 0; i < at.count;) {
    const std::int64_t block = (at.col + i) / op.block;
    const std::int64_t count = std::min(at.count - i, (block + 1) * op.block - at.col - i);
    block_adam_run(s, s.step(op.moment.as<float>()[block]), count, masters.data() + i, gradient + i,
                   m + i);
    i += count;
  }
  masters.write();
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(squares_of_pass);
HWY_EXPORT(block_adam_update);

namespace {

void run_block_squares(const KernelCtx& ctx, const BlockSquares& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  sum_runs(ctx.threads, op.block, op.out, workspace,
           [&](const Segment& at) { return HWY_DYNAMIC_DISPATCH(squares_of_pass)(op.g, at); });
}

void run_block_adam_update(const KernelCtx& ctx, const BlockAdamUpdate& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const BlockAdamScalars<float> scalars(op, decision);
  parallel_blocks(ctx.threads, op.to.numel(), kElementsPerBlock,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_passes(begin, end, [&](const Segment& at) {
                      HWY_DYNAMIC_DISPATCH(block_adam_update)(op, scalars, at);
                    });
                  });
}

}  // namespace

void add_block_moments_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<BlockSquares, run_block_squares>());
  rows.push_back(row_of<BlockAdamUpdate, run_block_adam_update>());
}

}  // namespace llmtrain::kernels::fast
#endif
