#include "kernels/projected.hpp"

#include <array>

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
}

}  // namespace llmtrain::kernels::reference
