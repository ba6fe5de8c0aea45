#include "kernels/norm.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

/// `view` holds the rows of `like`: dense, or strided where heads are normalised alone.
void check_rows(const Operands& operands, std::string_view name, const View& view, const View& like,
                std::int64_t head_dim) {
  operands.strided(name, view, like.rows(), like.cols(), {like.dtype});
  if (head_dim == 0) operands.dense(name, view, like.numel(), {like.dtype});
}

void check_heads(const Operands& operands, const View& x, std::int64_t head_dim) {
  operands.expects(x.cols() > 0, "at least one column");
  operands.expects(head_dim >= 0 && (head_dim == 0 || x.cols() % head_dim == 0),
                   "heads of equal width");
}

}  // namespace

void NormForward::check() const {
  const Operands operands(name);
  check_heads(operands, x, head_dim);
  const NormRows rows = norms();
  const DType statistic = sum_dtype(x.dtype);
  operands.expects(eps >= 0, "eps >= 0");
  if (head_dim == 0) operands.dense("x", x, x.rows() * x.cols(), kComputeDTypes);
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  if (residual.defined()) {
    operands.expects(head_dim == 0, "no residual beside heads");
    operands.dense("residual", residual, x.numel(), {x.dtype});
    operands.dense("sum", sum, x.numel(), {x.dtype});
    operands.distinct("y", y, "sum", sum);
  } else {
    operands.absent("sum", sum);
  }
  operands.dense("weight", weight, rows.width, {x.dtype, DType::f32});
  if (bias.defined()) operands.dense("bias", bias, rows.width, {weight.dtype});
  check_rows(operands, "y", y, x, head_dim);
  if (kind == NormKind::layer_norm) {
    operands.dense("mean", mean, rows.count(x), {statistic});
  } else {
    operands.absent("mean", mean);
  }
  operands.dense("rstd", rstd, rows.count(x), {statistic});
}

Cost NormForward::cost() const {
  return memory_cost({x, residual, weight, bias}, {sum, y, mean, rstd});
}

void NormBackward::check() const {
  const Operands operands(name);
  check_heads(operands, dy, head_dim);
  const NormRows rows = norms();
  const DType sink = sum_dtype(dy.dtype);
  if (head_dim == 0) operands.dense("dy", dy, dy.rows() * dy.cols(), kComputeDTypes);
  operands.strided("dy", dy, dy.rows(), dy.cols(), kComputeDTypes);
  if (dsum.defined()) {
    operands.expects(head_dim == 0, "no dsum beside heads");
    operands.dense("dsum", dsum, dy.numel(), {dy.dtype});
  }
  check_rows(operands, "s", s, dy, head_dim);
  operands.dense("weight", weight, rows.width, {dy.dtype, DType::f32});
  if (kind == NormKind::layer_norm) {
    operands.dense("mean", mean, rows.count(dy), {sink});
  } else {
    operands.absent("mean", mean);
  }
  operands.dense("rstd", rstd, rows.count(dy), {sink});
  check_rows(operands, "dx", dx, dy, head_dim);
  operands.distinct("dx", dx, "s", s);
  operands.dense("dweight", dweight, rows.width, {sink});
  if (dbias.defined()) operands.dense("dbias", dbias, rows.width, {sink});
}

Cost NormBackward::cost() const {
  return memory_cost({dy, dsum, s, weight, mean, rstd, dweight, dbias}, {dx, dweight, dbias});
}

std::uint64_t NormBackward::workspace_bytes(int) const {
  const std::int64_t sinks = dbias.defined() ? 2 : 1;
  return static_cast<std::uint64_t>(row_blocks() * norms().width * sinks) * size_of(dweight.dtype);
}

}  // namespace llmtrain::kernels
