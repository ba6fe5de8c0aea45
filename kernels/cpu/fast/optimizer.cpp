#include "kernels/optimizer.hpp"

#include <array>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/optimizer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/fast/segments.hpp"
#include "kernels/cpu/fast/squares-inl.h"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rows.hpp"
#include "kernels/update_scalars.hpp"
#include "lib/base/tree_sum.hpp"

// Updates use no fused multiply-add: bound by memory they lose nothing, and every instruction set
// gives the bits of the reference.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

void clip_by_value(float* g, std::int64_t count, double limit, bool keeps_infinite) {
  const V high = constant(limit);
  const V low = constant(-limit);
  for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V x = load(g + i, lanes);
    // Comparisons let a NaN through, Min and Max do not.
    const V raised = hn::IfThenElse(hn::Lt(x, low), low, x);
    const V clipped = hn::IfThenElse(hn::Gt(raised, high), high, raised);
    store(keeps_infinite ? hn::IfThenElse(hn::IsInf(x), x, clipped) : clipped, g + i, lanes);
  });
}

/// Moments of S, FP32 or bf16.
template <class S>
void adam_update_of(const AdamTensors& of, const AdamScalars<float>& s, const Segment& at) {
  Masters masters(of.to, s.update, at);
  float* parameter = masters.data();
  const float* gradient = at.of<float>(of.to.gradient);
  S* m = at.of<S>(of.m);
  S* v = at.of<S>(of.v);
  std::uint16_t halves_of_m[kPass], halves_of_v[kPass];
  if constexpr (std::is_same_v<S, bf16>) {
    draw_for_pass(of.rounding.of(0), s.update, at, halves_of_m);
    draw_for_pass(of.rounding.of(1), s.update, at, halves_of_v);
  }
  const V grad_scale = constant(s.grad_scale);
  const V before = constant(s.kept_before), after = constant(s.kept_after);
  const V weight_decay = constant(s.weight_decay);
  const V beta1 = constant(s.beta1);
  const V beta2 = constant(s.beta2);
  const V one_minus_beta1 = constant(s.one_minus_beta1);
  const V one_minus_beta2 = constant(s.one_minus_beta2);
  const V step_size = constant(s.step_size);
  const V correction = constant(s.sqrt_bias_correction2);
  const V eps = constant(s.eps);
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    prefetch(i, gradient, parameter, m, v);
    V g = hn::Mul(load(gradient + i, lanes), grad_scale);
    const V p = load(parameter + i, lanes);
    if (s.in_gradient) g = hn::Add(g, hn::Mul(weight_decay, p));
    const V m_new = hn::Add(hn::Mul(beta1, load(m + i, lanes)), hn::Mul(one_minus_beta1, g));
    const V v_new =
        hn::Add(hn::Mul(beta2, load(v + i, lanes)), hn::Mul(hn::Mul(one_minus_beta2, g), g));
    const V root = hn::Add(hn::Div(hn::Sqrt(v_new), correction), eps);
    const V stepped = hn::Sub(hn::Mul(p, before), hn::Div(hn::Mul(step_size, m_new), root));
    store(hn::Mul(stepped, after), parameter + i, lanes);
    store_state(m_new, halves_of_m + i, m + i, lanes);
    store_state(v_new, halves_of_v + i, v + i, lanes);
  });
  masters.write();
}

void adam_update(const AdamTensors& of, const AdamScalars<float>& s, const Segment& at) {
  of.rounding.words.on ? adam_update_of<bf16>(of, s, at) : adam_update_of<float>(of, s, at);
}

template <class D>
void step_update_as(const StepUpdate& op, const StepUpdateScalars<float>& s, const Segment& at) {
  Masters masters(op.to, s.update, at);
  float* parameter = masters.data();
  const D* direction = at.of<D>(op.to.gradient);
  const V before = constant(s.kept_before), after = constant(s.kept_after);
  const V step_size = constant(s.step_size);
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V kept = hn::Mul(before, load(parameter + i, lanes));
    const V moved = hn::Add(kept, hn::Mul(step_size, load(direction + i, lanes)));
    store(hn::Mul(moved, after), parameter + i, lanes);
  });
  masters.write();
}

void step_update(const StepUpdate& op, const StepUpdateScalars<float>& s, const Segment& at) {
  with_fast_type(op.to.gradient.dtype, [&]<class D>() { step_update_as<D>(op, s, at); });
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(squared_norm);
HWY_EXPORT(clip_by_value);
HWY_EXPORT(adam_update);
HWY_EXPORT(step_update);

namespace {

void run_squared_norm(const KernelCtx& ctx, const SquaredNorm& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  static_assert(kPass == SquaredNorm::kBlock);
  auto* const chunks = workspace.as<double>();
  for_chunks(ctx.threads, op.table, only_row<SquaredNorm>(op.table, op.gradients),
             [&](std::size_t row, std::int64_t chunk, std::int64_t begin, std::int64_t end) {
               std::array<double, kListChunk / kPass> blocks;
               for_passes(begin, end, [&](const Segment& at) {
                 blocks[static_cast<std::size_t>((at.col - begin) / kPass)] =
                     HWY_DYNAMIC_DISPATCH(squared_norm)(at.of<float>(op.gradients[row]), at.count);
               });
               const auto count = static_cast<std::size_t>((end - begin + kPass - 1) / kPass);
               chunks[chunk] = tree_sum({blocks.data(), count});
             });
  std::int64_t first = 0;
  for (std::size_t i = 0; i < op.gradients.size(); ++i) {
    const std::int64_t count = list_chunks(op.gradients[i].numel());
    op.out.as<double>()[i] = tree_sum({chunks + first, static_cast<std::size_t>(count)});
    first += count;
  }
}

void run_clip_by_value(const KernelCtx& ctx, const ClipByValue& op, const View& workspace) {
  if (op.g.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_passes(ctx.threads, op.g.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(clip_by_value)
    (at.of<float>(op.g), at.count, op.limit_now(), op.decision.defined());
  });
}

void run_adam_update(const KernelCtx& ctx, const AdamUpdate& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  for_chunks(ctx.threads, op.table, only_row<AdamUpdate>(op.table, op.tensors),
             [&](std::size_t row, std::int64_t, std::int64_t begin, std::int64_t end) {
               const AdamTensors& of = op.tensors[row];
               const AdamScalars<float> scalars(op, of.lr_scale, of.weight_decay, decision);
               for_passes(begin, end, [&](const Segment& at) {
                 HWY_DYNAMIC_DISPATCH(adam_update)(of, scalars, at);
               });
             });
}

void run_step_update(const KernelCtx& ctx, const StepUpdate& op, const View& workspace) {
  if (op.to.gradient.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const StepUpdateScalars<float> scalars(op, decision);
  parallel_passes(ctx.threads, op.to.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(step_update)(op, scalars, at);
  });
}

}  // namespace

void add_optimizer_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, run_squared_norm>());
  rows.push_back(row_of<ClipByValue, run_clip_by_value>());
  rows.push_back(row_of<JoinSquaredNorms, run_reference<JoinSquaredNorms>>());
  rows.push_back(row_of<DecideUpdate, run_reference<DecideUpdate>>());
  rows.push_back(row_of<AdamUpdate, run_adam_update>());
  rows.push_back(row_of<StepUpdate, run_step_update>());
}

}  // namespace llmtrain::kernels::fast
#endif
