// Compiled without errno in roots, so that the loop over a rule becomes vectors (rule_update.cpp).
#include "kernels/projected.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/projected.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/orthonormal_rows.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/singular_vectors.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

RowLoops::Products products(const double* HWY_RESTRICT p, const double* HWY_RESTRICT q,
                            std::int64_t n) {
  constexpr int kLanes = RowLoops::kLanes;
  double pp[kLanes] = {}, qq[kLanes] = {}, pq[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      pp[l] += p[i + l] * p[i + l];
      qq[l] += q[i + l] * q[i + l];
      pq[l] += p[i + l] * q[i + l];
    }
  }
  for (int l = 0; i < n; ++i, ++l) {
    pp[l] += p[i] * p[i];
    qq[l] += q[i] * q[i];
    pq[l] += p[i] * q[i];
  }
  RowLoops::Products sum;
  for (int l = 0; l < kLanes; ++l) {
    sum.pp += pp[l];
    sum.qq += qq[l];
    sum.pq += pq[l];
  }
  return sum;
}

void turn(double* HWY_RESTRICT p, double* HWY_RESTRICT q, double c, double s, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = p[i], y = q[i];
    p[i] = c * x - s * y;
    q[i] = s * x + c * y;
  }
}

/// Line by line, so that neighbouring columns are vectors.
void reflect(const RowLoops::Reflection& by, double* HWY_RESTRICT row, double* HWY_RESTRICT lines,
             std::int64_t width) {
  double parts[RowLoops::kColumns];
  for (std::int64_t j = 0; j < width; ++j) parts[j] = by.first * row[j];
  for (std::int64_t i = 0; i < by.count; ++i) {
    const double* line = lines + i * by.stride;
    for (std::int64_t j = 0; j < width; ++j) parts[j] += by.v[i] * line[j];
  }
  for (std::int64_t j = 0; j < width; ++j) {
    parts[j] *= by.tau;
    row[j] -= by.first * parts[j];
  }
  for (std::int64_t i = 0; i < by.count; ++i) {
    double* line = lines + i * by.stride;
    for (std::int64_t j = 0; j < width; ++j) line[j] -= by.v[i] * parts[j];
  }
}

RowLoops row_loops() { return {products, turn, reflect}; }

void subspace_step(const SubspaceStep& op, const Segment& at) {
  const rules::AdamEpsHat::In<float> rule(op.rule, 1, *op.decision.as<UpdateDecision>());
  const float* g = at.of<float>(op.g);
  float* m = at.of<float>(op.m);
  float* v = at.of<float>(op.v);
  float* y = at.of<float>(op.y);  // may be g
  for (std::int64_t i = 0; i < at.count; ++i) {
    float states[] = {m[i], v[i]};
    y[i] = rule.step(g[i], states);
    m[i] = states[0];
    v[i] = states[1];
  }
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(row_loops);
HWY_EXPORT(subspace_step);

namespace {

// In FP64 for all types.
void singular_vectors(const KernelCtx& ctx, const TopSingularVectors& op, const View& workspace) {
  if (!op.is_due(*op.decision.as<UpdateDecision>())) return;
  top_singular_vectors(op, workspace, ctx.threads, HWY_DYNAMIC_DISPATCH(row_loops)());
}

void orthonormal(const KernelCtx& ctx, const Orthonormalize& op, const View& workspace) {
  if (!op.is_due(*op.decision.as<UpdateDecision>())) return;
  orthonormalize(op, workspace, ctx.threads, HWY_DYNAMIC_DISPATCH(row_loops)());
}

void run_subspace_step(const KernelCtx& ctx, const SubspaceStep& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  parallel_passes(ctx.threads, op.g.numel(), [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(subspace_step)(op, at);
  });
}

}  // namespace

void add_projected_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<TopSingularVectors, singular_vectors>());
  rows.push_back(row_of<Orthonormalize, orthonormal>());
  rows.push_back(row_of<SubspaceStep, run_subspace_step>());
}

}  // namespace llmtrain::kernels::fast
#endif
