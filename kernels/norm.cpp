#include "kernels/norm.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void NormForward::check() const {
  const Operands operands(name);
  const std::int64_t rows = x.rows();
  const std::int64_t hidden = x.cols();
  const DType statistic = sum_dtype(x.dtype);
  operands.expects(hidden > 0, "at least one column");
  operands.expects(eps >= 0, "eps >= 0");
  operands.dense("x", x, rows * hidden, kComputeDTypes);
  if (residual.defined()) {
    operands.dense("residual", residual, x.numel(), {x.dtype});
    operands.dense("sum", sum, x.numel(), {x.dtype});
    operands.distinct("y", y, "sum", sum);
  } else {
    operands.absent("sum", sum);
  }
  operands.dense("weight", weight, hidden, {x.dtype, DType::f32});
  if (bias.defined()) operands.dense("bias", bias, hidden, {weight.dtype});
  operands.strided("y", y, rows, hidden, {x.dtype});
  operands.dense("y", y, x.numel(), {x.dtype});
  if (kind == NormKind::layer_norm) {
    operands.dense("mean", mean, rows, {statistic});
  } else {
    operands.absent("mean", mean);
  }
  operands.dense("rstd", rstd, rows, {statistic});
}

Cost NormForward::cost() const {
  return memory_cost({x, residual, weight, bias}, {sum, y, mean, rstd});
}

void NormInputGrad::check() const {
  const Operands operands(name);
  const std::int64_t rows = dy.rows();
  const std::int64_t hidden = dy.cols();
  const DType statistic = sum_dtype(dy.dtype);
  operands.expects(hidden > 0, "at least one column");
  operands.dense("dy", dy, rows * hidden, kComputeDTypes);
  if (dsum.defined()) operands.dense("dsum", dsum, dy.numel(), {dy.dtype});
  operands.strided("s", s, rows, hidden, {dy.dtype});
  operands.dense("s", s, dy.numel(), {dy.dtype});
  operands.dense("weight", weight, hidden, {dy.dtype, DType::f32});
  if (kind == NormKind::layer_norm) {
    operands.dense("mean", mean, rows, {statistic});
  } else {
    operands.absent("mean", mean);
  }
  operands.dense("rstd", rstd, rows, {statistic});
  operands.dense("dx", dx, dy.numel(), {dy.dtype});
  operands.distinct("dx", dx, "s", s);
}

Cost NormInputGrad::cost() const { return memory_cost({dy, dsum, s, weight, mean, rstd}, {dx}); }

void NormWeightGrad::check() const {
  const Operands operands(name);
  const std::int64_t rows = dy.rows();
  const std::int64_t hidden = dy.cols();
  const DType sink = sum_dtype(dy.dtype);
  operands.dense("dy", dy, rows * hidden, kComputeDTypes);
  operands.strided("s", s, rows, hidden, {dy.dtype});
  operands.dense("s", s, dy.numel(), {dy.dtype});
  if (kind == NormKind::layer_norm) {
    operands.dense("mean", mean, rows, {sink});
  } else {
    operands.absent("mean", mean);
  }
  operands.dense("rstd", rstd, rows, {sink});
  operands.dense("dweight", dweight, hidden, {sink});
  if (dbias.defined()) operands.dense("dbias", dbias, hidden, {sink});
}

Cost NormWeightGrad::cost() const {
  return memory_cost({dy, s, mean, rstd, dweight, dbias}, {dweight, dbias});
}

std::uint64_t NormWeightGrad::workspace_bytes(int) const {
  const std::int64_t sinks = dbias.defined() ? 2 : 1;
  return static_cast<std::uint64_t>(num_row_blocks(dy.rows()) * dy.cols() * sinks) *
         size_of(dweight.dtype);
}

}  // namespace llmtrain::kernels
