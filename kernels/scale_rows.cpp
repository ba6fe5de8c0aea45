#include "kernels/scale_rows.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

void check_rows(const Operands& operands, const View& x, const View& weight) {
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.dense("weight", weight, x.rows(), {sum_dtype(x.dtype)});
}

}  // namespace

void ScaleRows::check() const {
  const Operands operands(name);
  check_rows(operands, x, weight);
  operands.strided("y", y, x.rows(), x.cols(), {x.dtype});
}

Cost ScaleRows::cost() const { return memory_cost({x, weight}, {y}); }

void ScaleRowsBackward::check() const {
  const Operands operands(name);
  check_rows(operands, x, weight);
  operands.strided("dy", dy, x.rows(), x.cols(), {x.dtype});
  operands.strided("dx", dx, x.rows(), x.cols(), {x.dtype});
  operands.dense("dweight", dweight, x.rows(), {weight.dtype});
  operands.distinct("dx", dx, "x", x);
  operands.distinct("dweight", dweight, "weight", weight);
}

Cost ScaleRowsBackward::cost() const { return memory_cost({x, weight, dy}, {dx, dweight}); }

}  // namespace llmtrain::kernels
