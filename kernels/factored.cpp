#include "kernels/factored.hpp"

#include "kernels/operands.hpp"
#include "kernels/update_operands.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::initializer_list<DType> kMasters = {DType::f64, DType::f32};

void check_shape(const Operands& operands, const Matrices& shape) {
  operands.expects(shape.count >= 0 && shape.rows > 0 && shape.columns > 0,
                   "matrices with rows and columns");
}

/// A value for each row, where there is one, and for each column.
void check_bounds(const Operands& operands, const View& rows, const View& columns,
                  const Matrices& shape, DType dtype) {
  operands.expects(rows.defined() || shape.rows == 1, "values of rows where there are several");
  if (rows.defined()) operands.dense("rows", rows, shape.count * shape.rows, {dtype});
  operands.dense("columns", columns, shape.count * shape.columns, {dtype});
}

void check_clip(const Operands& operands, const StepClip& clip, std::int64_t matrices) {
  operands.expects(clip.numel > 0 && clip.threshold > 0, "a threshold above 0");
  if (clip.squares.defined()) {
    operands.dense("clip.squares", clip.squares, matrices, {DType::f64});
  }
}

}  // namespace

void ColumnSquares::check() const {
  const Operands operands(name);
  check_shape(operands, shape);
  operands.dense("x", x, shape.numel(), kMasters);
  operands.dense("out", out, shape.count * shape.columns, {DType::f64});
}

Cost ColumnSquares::cost() const { return memory_cost({x}, {out}); }

void RowTotals::check() const {
  const Operands operands(name);
  operands.dense("out", out, out.numel(), {DType::f64});
  operands.expects(out.numel() > 0 ? x.numel() % out.numel() == 0 : x.numel() == 0, "whole rows");
  operands.dense("x", x, x.numel(), kMasters);
}

Cost RowTotals::cost() const { return memory_cost({x}, {out}); }

void MasterSquares::check() const {
  const Operands operands(name);
  check_update(operands, to);
  operands.dense("out", out, out.numel(), {DType::f64});
  operands.expects(out.numel() > 0 ? to.numel() % out.numel() == 0 : to.numel() == 0,
                   "whole matrices");
}

Cost MasterSquares::cost() const {
  if (to.parameter.defined()) return memory_cost({to.parameter}, {out});
  return memory_cost({to.compute_copy, to.remainder}, {out});
}

void FactoredScale::check() const {
  const Operands operands(name);
  check_shape(operands, shape);
  operands.dense("x", x, shape.numel(), kMasters);
  operands.dense("y", y, shape.numel(), {x.dtype});
  check_bounds(operands, rows, columns, shape, x.dtype);
  operands.expects(all_rows >= shape.rows, "all rows");
  if (rows.defined()) operands.dense("totals", totals, shape.count, {DType::f64});
  check_decision(operands, decision);
}

Cost FactoredScale::cost() const { return memory_cost({x, rows, columns}, {y}); }

void MatrixStepUpdate::check() const {
  const Operands operands(name);
  check_update(operands, to);
  check_decision(operands, decision);
  operands.expects(matrices > 0 && to.numel() % matrices == 0, "whole matrices");
  operands.dense("u", u, to.numel(), {to.gradient.dtype});
  if (m.defined()) operands.dense("m", m, to.numel(), {to.gradient.dtype});
  check_clip(operands, clip, matrices);
  if (parameter_squares.defined()) {
    operands.dense("parameter_squares", parameter_squares, matrices, {DType::f64});
  }
  operands.expects(beta1 >= 0 && beta1 < 1, "beta1 in [0, 1)");
}

Cost MatrixStepUpdate::cost() const {
  Cost cost = update_cost(to);
  cost += memory_cost({m}, {m});  // u takes the place of the gradient
  return cost;
}

void CameMoment::check() const {
  const Operands operands(name);
  operands.expects(matrices > 0 && u.numel() % matrices == 0, "whole matrices");
  operands.dense("u", u, u.numel(), kMasters);
  operands.dense("m", m, u.numel(), {u.dtype});
  check_clip(operands, clip, matrices);
  check_decision(operands, decision);
  operands.expects(beta1 >= 0 && beta1 < 1, "beta1 in [0, 1)");
}

Cost CameMoment::cost() const { return memory_cost({u, m}, {u, m}); }

void CoverMaxima::check() const {
  const Operands operands(name);
  check_shape(operands, shape);
  operands.dense("g", g, shape.numel(), kMasters);
  check_bounds(operands, rows, columns, shape, g.dtype);
  check_bounds(operands, new_rows, new_columns, shape, g.dtype);
  operands.expects(rows.defined() == new_rows.defined(), "rows and new rows, or none of them");
  operands.distinct("new_columns", new_columns, "columns", columns);
  if (rows.defined()) operands.distinct("new_rows", new_rows, "rows", rows);
  check_decision(operands, decision);
}

Cost CoverMaxima::cost() const { return memory_cost({g, rows, columns}, {new_rows, new_columns}); }

void CoverScale::check() const {
  const Operands operands(name);
  check_shape(operands, shape);
  operands.dense("g", g, shape.numel(), kMasters);
  operands.dense("u", u, shape.numel(), {g.dtype});
  check_bounds(operands, rows, columns, shape, g.dtype);
  check_decision(operands, decision);
}

Cost CoverScale::cost() const { return memory_cost({g, rows, columns}, {u}); }

}  // namespace llmtrain::kernels
