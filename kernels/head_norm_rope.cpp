#include "kernels/head_norm_rope.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

void check_heads(const Operands& operands, const NormedHeads& heads, const View& x) {
  const std::int64_t dim = heads.head_dim, rotary = heads.rotary_dim;
  operands.expects(dim > 0 && x.cols() % dim == 0, "rows of whole heads of head_dim");
  operands.expects(heads.q_heads > 0 && heads.q_heads < x.cols() / dim, "heads of q and of k");
  operands.expects(rotary > 0 && rotary <= dim && rotary % 2 == 0,
                   "rotary_dim to be even and within head_dim");
  operands.dense("cosine", heads.cosine, heads.cosine.rows() * (rotary / 2), {sum_dtype(x.dtype)});
  operands.dense("sine", heads.sine, heads.cosine.numel(), {sum_dtype(x.dtype)});
  operands.dense("position", heads.position, x.rows(), {DType::i32});
}

// One row of each table per row of `x`.
Cost table_cost(const NormedHeads& heads, const View& x) {
  return {.bytes_read = static_cast<double>(x.rows() * heads.rotary_dim) *
                        static_cast<double>(size_of(heads.cosine.dtype))};
}

}  // namespace

void HeadNormRope::check() const {
  const Operands operands(name);
  check_heads(operands, heads, x);
  operands.expects(eps >= 0, "eps >= 0");
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.strided("y", y, x.rows(), x.cols(), {x.dtype});
  operands.distinct("y", y, "x", x);
  operands.dense("q_weight", q_weight, heads.head_dim, {x.dtype, DType::f32});
  operands.dense("k_weight", k_weight, heads.head_dim, {q_weight.dtype});
  operands.dense("rstd", rstd, norms().count(x), {sum_dtype(x.dtype)});
}

Cost HeadNormRope::cost() const {
  Cost cost = memory_cost({x, q_weight, k_weight, heads.position}, {y, rstd});
  return cost += table_cost(heads, x);
}

void HeadNormRopeBackward::check() const {
  const Operands operands(name);
  check_heads(operands, heads, dy);
  const DType wide = sum_dtype(dy.dtype);
  operands.strided("dy", dy, dy.rows(), dy.cols(), kComputeDTypes);
  operands.strided("x", x, dy.rows(), dy.cols(), {dy.dtype});
  operands.strided("dx", dx, dy.rows(), dy.cols(), {dy.dtype});
  operands.distinct("dx", dx, "x", x);
  operands.expects(dx.data != dy.data || dx.row_stride == dy.row_stride || dy.rows() <= 1,
                   "dx to have the strides of dy when it is dy");
  operands.dense("q_weight", q_weight, heads.head_dim, {dy.dtype, DType::f32});
  operands.dense("k_weight", k_weight, heads.head_dim, {q_weight.dtype});
  operands.dense("rstd", rstd, norms().count(dy), {wide});
  operands.dense("dq_weight", dq_weight, heads.head_dim, {wide});
  operands.dense("dk_weight", dk_weight, heads.head_dim, {wide});
}

Cost HeadNormRopeBackward::cost() const {
  Cost cost = memory_cost({dy, x, q_weight, k_weight, rstd, heads.position, dq_weight, dk_weight},
                          {dx, dq_weight, dk_weight});
  return cost += table_cost(heads, dy);
}

std::uint64_t HeadNormRopeBackward::workspace_bytes(int) const {
  const std::int64_t blocks = num_row_blocks(num_q()) + num_row_blocks(num_k());
  return static_cast<std::uint64_t>(blocks * heads.head_dim) * size_of(dq_weight.dtype);
}

}  // namespace llmtrain::kernels
