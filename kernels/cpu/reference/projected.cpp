#include "kernels/projected.hpp"

#include <array>
#include <cmath>

#include "kernels/cpu/orthonormal_rows.hpp"
#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/singular_vectors.hpp"

namespace llmtrain::kernels::reference {

namespace {

RowLoops::Products products(const double* p, const double* q, std::int64_t n) {
  std::array<RowLoops::Products, RowLoops::kLanes> lanes{};
  for (std::int64_t i = 0; i < n; ++i) {
    RowLoops::Products& lane = lanes[static_cast<std::size_t>(i % RowLoops::kLanes)];
    lane.pp += p[i] * p[i];
    lane.qq += q[i] * q[i];
    lane.pq += p[i] * q[i];
  }
  RowLoops::Products sum;
  for (const RowLoops::Products& lane : lanes) {
    sum.pp += lane.pp;
    sum.qq += lane.qq;
    sum.pq += lane.pq;
  }
  return sum;
}

void turn(double* p, double* q, double c, double s, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = p[i], y = q[i];
    p[i] = c * x - s * y;
    q[i] = s * x + c * y;
  }
}

void reflect(const RowLoops::Reflection& by, double* row, double* lines, std::int64_t width) {
  for (std::int64_t j = 0; j < width; ++j) {
    double part = by.first * row[j];
    for (std::int64_t i = 0; i < by.count; ++i) part += by.v[i] * lines[i * by.stride + j];
    part *= by.tau;
    row[j] -= by.first * part;
    for (std::int64_t i = 0; i < by.count; ++i) lines[i * by.stride + j] -= by.v[i] * part;
  }
}

void singular_vectors(const KernelCtx&, const TopSingularVectors& op, const View& workspace) {
  if (!op.is_due(*op.decision.as<UpdateDecision>())) return;
  top_singular_vectors(op, workspace, 1, {products, turn, reflect});
}

void orthonormal(const KernelCtx&, const Orthonormalize& op, const View& workspace) {
  if (!op.is_due(*op.decision.as<UpdateDecision>())) return;
  orthonormalize(op, workspace, 1, {products, turn, reflect});
}

/// Corrections of the bias of moments of the updates before this one; `any`: there are some.
struct Before {
  bool any;
  double correction1, correction2;
  Before(const UpdateDecision& d, double beta1, double beta2)
      : any(d.updates > 1),
        correction1(1 - std::pow(beta1, d.updates - 1)),
        correction2(1 - std::pow(beta2, d.updates - 1)) {}
};

void unbiased_moments(const KernelCtx&, const UnbiasedMoments& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const Before before(decision, op.beta1, op.beta2);
  with_master_type(op.dtype(), [&]<class T>() {
    const T factor1 = static_cast<T>(before.any ? 1 / before.correction1 : 0);
    const T factor2 = static_cast<T>(before.any ? 1 / before.correction2 : 0);
    for (std::int64_t i = 0; i < op.m.numel(); ++i) {
      const T mean = op.m.as<T>()[i] * factor1;
      op.variance.as<T>()[i] = op.v.as<T>()[i] * factor2 - mean * mean;
      op.mean.as<T>()[i] = mean;
    }
  });
}

void square_elements(const KernelCtx&, const SquareElements& op, const View&) {
  with_master_type(op.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < op.x.numel(); ++i) {
      const T x = op.x.as<T>()[i];
      op.y.as<T>()[i] = x * x;
    }
  });
}

void carried_step(const KernelCtx&, const CarriedStep& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  const Before before(decision, op.rule.beta1, op.rule.beta2);
  with_master_type(op.dtype(), [&]<class T>() {
    const rules::Adam::In<T> rule(op.rule, 1, decision);
    const T factor = static_cast<T>(before.any ? 1 / before.correction1 : 0);
    const T correction2 = static_cast<T>(before.correction2);
    for (std::int64_t i = 0; i < op.g.numel(); ++i) {
      T states[] = {0, 0};
      if (before.any) {
        const T carried = op.carried.as<T>()[i], mean = carried * factor;
        states[0] = carried;
        states[1] = std::abs(correction2 * (op.variance.as<T>()[i] + mean * mean));
      }
      op.y.as<T>()[i] = rule.step(op.g.as<T>()[i], states);
      op.m.as<T>()[i] = states[0];
      op.v.as<T>()[i] = states[1];
    }
  });
}

void subspace_step(const KernelCtx&, const SubspaceStep& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.dtype(), [&]<class T>() {
    const rules::AdamEpsHat::In<T> rule(op.rule, 1, decision);
    for (std::int64_t i = 0; i < op.g.numel(); ++i) {
      T states[] = {op.m.as<T>()[i], op.v.as<T>()[i]};
      op.y.as<T>()[i] = rule.step(op.g.as<T>()[i], states);
      op.m.as<T>()[i] = states[0];
      op.v.as<T>()[i] = states[1];
    }
  });
}

}  // namespace

void add_projected_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<TopSingularVectors, singular_vectors>());
  rows.push_back(row_of<SubspaceStep, subspace_step>());
  rows.push_back(row_of<Orthonormalize, orthonormal>());
  rows.push_back(row_of<UnbiasedMoments, unbiased_moments>());
  rows.push_back(row_of<SquareElements, square_elements>());
  rows.push_back(row_of<CarriedStep, carried_step>());
}

}  // namespace llmtrain::kernels::reference
