#include "kernels/projected.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::initializer_list<DType> kMasters = {DType::f64, DType::f32};

// Of matrices as training has them.
constexpr double kSweeps = 8;

}  // namespace

void TopSingularVectors::check() const {
  const Operands operands(name);
  operands.expects(g.shape.rank() == 2 && side() > 0, "a matrix with rows and columns");
  operands.dense("g", g, g.numel(), kMasters);
  operands.expects(vectors.shape.rank() == 2 && rank() > 0 && rank() <= side(),
                   "one vector for each dim of the shorter side, or fewer");
  operands.expects((of_rows() ? vectors.cols() : vectors.rows()) == side(),
                   "vectors of the shorter side");
  operands.dense("vectors", vectors, vectors.numel(), {g.dtype});
  operands.distinct("vectors", vectors, "g", g);
  operands.expects(gap > 0, "a gap above 0");
  check_decision(operands, decision);
}

Cost TopSingularVectors::cost() const {
  const auto n = static_cast<double>(side()), all = static_cast<double>(g.numel());
  const double triangle = all * n / static_cast<double>(kLines) * sizeof(double);
  const double rotations = kSweeps * n * n * n * sizeof(double);
  Cost cost = memory_cost({g}, {vectors});
  cost += {.flops = 0, .bytes_read = triangle + rotations, .bytes_written = triangle + rotations};
  return 1 / static_cast<double>(gap) * cost;
}

// The triangle, the lines that join it, and for each vector its length, place and remainder.
std::uint64_t TopSingularVectors::workspace_bytes(int) const {
  const std::int64_t n = side();
  return static_cast<std::uint64_t>((n + kLines + 3) * n) * sizeof(double);
}

void SubspaceStep::check() const {
  const Operands operands(name);
  operands.dense("g", g, g.numel(), kMasters);
  for (const View& other : {m, v, y}) operands.dense("m, v, y", other, g.numel(), {g.dtype});
  check_decision(operands, decision);
  operands.expects(rule.beta1 >= 0 && rule.beta1 < 1 && rule.beta2 >= 0 && rule.beta2 < 1,
                   "betas in [0, 1)");
}

Cost SubspaceStep::cost() const { return memory_cost({g, m, v}, {m, v, y}); }

}  // namespace llmtrain::kernels
