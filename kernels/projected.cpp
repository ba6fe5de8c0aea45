#include "kernels/projected.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::initializer_list<DType> kMasters = {DType::f64, DType::f32};

// Of matrices as training has them.
constexpr double kSweeps = 8;

void check_betas(const Operands& operands, double beta1, double beta2) {
  operands.expects(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas in [0, 1)");
}

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
  operands.expects(gap > 0 && apart > 0, "a gap above 0");
  check_decision(operands, decision);
}

Cost TopSingularVectors::cost() const {
  const auto n = static_cast<double>(side()), all = static_cast<double>(g.numel());
  const double triangle = all * n / static_cast<double>(kLines) * sizeof(double);
  const double rotations = kSweeps * n * n * n * sizeof(double);
  Cost cost = memory_cost({g}, {vectors});
  cost += {.flops = 0, .bytes_read = triangle + rotations, .bytes_written = triangle + rotations};
  return 1 / (static_cast<double>(gap) * static_cast<double>(apart)) * cost;
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
  check_betas(operands, rule.beta1, rule.beta2);
}

Cost SubspaceStep::cost() const { return memory_cost({g, m, v}, {m, v, y}); }

void Orthonormalize::check() const {
  const Operands operands(name);
  operands.expects(y.shape.rank() == 2 && count() > 0 && count() <= length(),
                   "as many vectors as they have elements, or fewer");
  operands.dense("y", y, y.numel(), kMasters);
  operands.dense("q", q, y.numel(), {y.dtype});
  operands.expects(q.shape == y.shape, "q in the shape of y");
  operands.expects(rounding > 0 && rounding < 1, "rounding in (0, 1)");
  check_decision(operands, decision);
}

// Each vector is read and written by all before it, once as those have their turn, once in its own.
Cost Orthonormalize::cost() const {
  const double passes = static_cast<double>(y.numel() * count()) * sizeof(double);
  Cost cost = memory_cost({y}, {q});
  cost += {.flops = 0, .bytes_read = 2 * passes, .bytes_written = passes};
  return cost;
}

// The vectors, what is left of each axis, and for each vector its length and place.
std::uint64_t Orthonormalize::workspace_bytes(int) const {
  return static_cast<std::uint64_t>(y.numel() + length() + 2 * count()) * sizeof(double);
}

void UnbiasedMoments::check() const {
  const Operands operands(name);
  operands.dense("m", m, m.numel(), kMasters);
  for (const View& other : {v, mean, variance}) {
    operands.dense("v, mean, variance", other, m.numel(), {m.dtype});
  }
  check_decision(operands, decision);
  check_betas(operands, beta1, beta2);
}

Cost UnbiasedMoments::cost() const { return memory_cost({m, v}, {mean, variance}); }

void SquareElements::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), kMasters);
  operands.dense("y", y, x.numel(), {x.dtype});
}

Cost SquareElements::cost() const { return memory_cost({x}, {y}); }

void CarriedStep::check() const {
  const Operands operands(name);
  operands.dense("g", g, g.numel(), kMasters);
  for (const View& other : {carried, variance, m, v, y}) {
    operands.dense("carried, variance, m, v, y", other, g.numel(), {g.dtype});
  }
  check_decision(operands, decision);
  check_betas(operands, rule.beta1, rule.beta2);
}

Cost CarriedStep::cost() const { return memory_cost({g, carried, variance}, {m, v, y}); }

}  // namespace llmtrain::kernels
