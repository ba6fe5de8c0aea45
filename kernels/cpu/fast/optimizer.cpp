#include "kernels/optimizer.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/optimizer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/segments.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rows.hpp"
#include "kernels/update_scalars.hpp"

// Updates use no fused multiply-add: bound by memory they lose nothing, and every instruction set
// gives the bits of the reference.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// Sum of squares of at most one block, in the order that SquaredNorm prescribes.
float squared_norm(const float* g, std::int64_t count) {
  constexpr std::int64_t kWidth = SquaredNorm::kLanes;
  const hn::CappedTag<float, kWidth> d;
  using W = hn::Vec<decltype(d)>;
  constexpr std::int64_t kStep = hn::MaxLanes(decltype(d)());
  W sums[kWidth / kStep];
  for (W& sum : sums) sum = hn::Zero(d);
  std::int64_t e = 0;
  for (; e + kWidth <= count; e += kWidth) {
    for (std::int64_t part = 0; part < kWidth / kStep; ++part) {
      const W x = hn::LoadU(d, g + e + part * kStep);
      sums[part] = hn::Add(sums[part], hn::Mul(x, x));
    }
  }
  float lanes[kWidth];
  for (std::int64_t part = 0; part < kWidth / kStep; ++part) {
    hn::StoreU(sums[part], d, lanes + part * kStep);
  }
  for (; e < count; ++e) lanes[e % kWidth] += g[e] * g[e];
  for (std::int64_t width = kWidth / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

void clip_by_value(float* g, std::int64_t count, double limit) {
  const V high = constant(limit);
  const V low = constant(-limit);
  for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    V x = load(g + i, lanes);
    x = hn::IfThenElse(hn::Lt(x, low), low,
                       x);  // comparisons let a NaN through, Min and Max do not
    store(hn::IfThenElse(hn::Gt(x, high), high, x), g + i, lanes);
  });
}

/// The compute copy of elements that were just written, hence still in the innermost cache.
void write_copy(const UpdateOperands& to, const Segment& at) {
  const float* parameter = at.of<float>(to.parameter);
  if (!to.compute_copy.defined()) return;
  if (to.compute_copy.dtype == DType::f32) {
    std::memcpy(at.of<float>(to.compute_copy), parameter,
                static_cast<std::size_t>(at.count) * sizeof(float));
    return;
  }
  bf16* copy = at.of<bf16>(to.compute_copy);
  for_vectors(at.count, [&](std::int64_t i, auto lanes)
                            HWY_ATTR { store(load(parameter + i, lanes), copy + i, lanes); });
}

void adam_update(const AdamUpdate& op, const AdamScalars<float>& s, const Segment& at) {
  float* parameter = at.of<float>(op.to.parameter);
  const float* gradient = at.of<float>(op.to.gradient);
  float* m = at.of<float>(op.m);
  float* v = at.of<float>(op.v);
  const bool decoupled = op.decoupled;
  const V grad_scale = constant(s.grad_scale);
  const V decay = constant(s.decay);
  const V weight_decay = constant(s.weight_decay);
  const V beta1 = constant(s.beta1);
  const V beta2 = constant(s.beta2);
  const V one_minus_beta1 = constant(s.one_minus_beta1);
  const V one_minus_beta2 = constant(s.one_minus_beta2);
  const V step_size = constant(s.step_size);
  const V correction = constant(s.sqrt_bias_correction2);
  const V eps = constant(s.eps);
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    V g = hn::Mul(load(gradient + i, lanes), grad_scale);
    V p = load(parameter + i, lanes);
    if (decoupled) {
      p = hn::Mul(p, decay);
    } else {
      g = hn::Add(g, hn::Mul(weight_decay, p));
    }
    const V m_new = hn::Add(hn::Mul(beta1, load(m + i, lanes)), hn::Mul(one_minus_beta1, g));
    const V v_new =
        hn::Add(hn::Mul(beta2, load(v + i, lanes)), hn::Mul(hn::Mul(one_minus_beta2, g), g));
    const V root = hn::Add(hn::Div(hn::Sqrt(v_new), correction), eps);
    store(hn::Sub(p, hn::Div(hn::Mul(step_size, m_new), root)), parameter + i, lanes);
    store(m_new, m + i, lanes);
    store(v_new, v + i, lanes);
  });
  write_copy(op.to, at);
}

void sgd_update(const SgdUpdate& op, const SgdScalars<float>& s, const Segment& at) {
  float* parameter = at.of<float>(op.to.parameter);
  const float* gradient = at.of<float>(op.to.gradient);
  float* buffer = op.momentum_buffer.defined() ? at.of<float>(op.momentum_buffer) : nullptr;
  const V grad_scale = constant(s.grad_scale);
  const V weight_decay = constant(s.weight_decay);
  const V momentum = constant(s.momentum);
  const V one_minus_dampening = constant(s.one_minus_dampening);
  const V lr = constant(s.lr);
  const bool first = s.first;
  const bool nesterov = op.nesterov;
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V p = load(parameter + i, lanes);
    const V scaled = hn::Mul(load(gradient + i, lanes), grad_scale);
    const V g = hn::Add(scaled, hn::Mul(weight_decay, p));
    V update = g;
    if (buffer != nullptr) {
      V b = g;
      if (!first) {
        b = hn::Add(hn::Mul(momentum, load(buffer + i, lanes)), hn::Mul(one_minus_dampening, g));
      }
      store(b, buffer + i, lanes);
      update = nesterov ? hn::Add(g, hn::Mul(momentum, b)) : b;
    }
    store(hn::Sub(p, hn::Mul(lr, update)), parameter + i, lanes);
  });
  write_copy(op.to, at);
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(squared_norm);
HWY_EXPORT(clip_by_value);
HWY_EXPORT(adam_update);
HWY_EXPORT(sgd_update);

namespace {

/// Elements of one pass: all operands of a pass fit in the innermost cache.
constexpr std::int64_t kPass = 1024;

/// Calls f(Segment) for passes over `count` contiguous elements.
template <class F>
void for_passes(int threads, std::int64_t count, const F& f) {
  parallel_blocks(threads, count, kElementsPerBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kPass) f(Segment{0, i, std::min(kPass, end - i)});
  });
}

void run_squared_norm(const KernelCtx& ctx, const SquaredNorm& op, const View& workspace) {
  if (op.g.dtype == DType::f64) return run_reference(ctx, op, workspace);
  static_assert(kElementsPerBlock % SquaredNorm::kBlock == 0 && kPass == SquaredNorm::kBlock);
  auto* const blocks = workspace.as<double>();
  for_passes(ctx.threads, op.g.numel(), [&](const Segment& at) {
    blocks[at.col / kPass] = HWY_DYNAMIC_DISPATCH(squared_norm)(at.of<float>(op.g), at.count);
  });
  std::int64_t count = (op.g.numel() + kPass - 1) / kPass;
  *op.out.as<double>() = 0;
  if (count == 0) return;
  for (; count > 1; count = (count + 1) / 2) {
    for (std::int64_t i = 0; i < count / 2; ++i) blocks[i] = blocks[2 * i] + blocks[2 * i + 1];
    if (count % 2 == 1) blocks[count / 2] = blocks[count - 1];
  }
  *op.out.as<double>() = blocks[0];
}

void run_clip_by_value(const KernelCtx& ctx, const ClipByValue& op, const View& workspace) {
  if (op.g.dtype == DType::f64) return run_reference(ctx, op, workspace);
  for_passes(ctx.threads, op.g.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(clip_by_value)(at.of<float>(op.g), at.count, op.limit);
  });
}

void run_adam_update(const KernelCtx& ctx, const AdamUpdate& op, const View& workspace) {
  if (op.to.parameter.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.to.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const AdamScalars<float> scalars(op, decision);
  for_passes(ctx.threads, op.to.parameter.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(adam_update)(op, scalars, at);
  });
}

void run_sgd_update(const KernelCtx& ctx, const SgdUpdate& op, const View& workspace) {
  if (op.to.parameter.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const UpdateDecision& decision = *op.to.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const SgdScalars<float> scalars(op, decision);
  for_passes(ctx.threads, op.to.parameter.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(sgd_update)(op, scalars, at);
  });
}

}  // namespace

void add_optimizer_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, run_squared_norm>());
  rows.push_back(row_of<ClipByValue, run_clip_by_value>());
  rows.push_back(row_of<DecideUpdate, run_reference<DecideUpdate>>());
  rows.push_back(row_of<AdamUpdate, run_adam_update>());
  rows.push_back(row_of<SgdUpdate, run_sgd_update>());
}

}  // namespace llmtrain::kernels::fast
#endif
