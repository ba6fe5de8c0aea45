#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention_rule.hpp"
#include "kernels/attention_scratch.hpp"
#include "kernels/operands.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels {

namespace {

/// Rows of one sequence on one side.
std::int64_t rows_per_sequence(const AttentionShape& shape, const View& side) {
  return shape.num_sequences == 0 ? 0 : side.rows() / shape.num_sequences;
}

void check_shape(const Operands& operands, const AttentionShape& shape, const View& q,
                 const View& k) {
  operands.expects(shape.num_sequences >= 0, "num_sequences >= 0");
  operands.expects(shape.head_dim > 0, "head_dim > 0");
  operands.expects(
      shape.num_kv_heads > 0 && shape.num_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
      "num_heads to be a positive multiple of num_kv_heads");
  operands.expects(shape.window >= 0, "window >= 0 (0: none)");
  operands.expects(std::isfinite(shape.scale), "a finite scale");
  if (shape.alibi.defined()) {
    operands.dense("alibi", shape.alibi, shape.num_heads, {sum_dtype(q.dtype)});
  }
  if (shape.sink.defined()) {
    operands.dense("sink", shape.sink, shape.num_heads, {q.dtype, sum_dtype(q.dtype)});
  }
  operands.expects(shape.softcap >= 0 && std::isfinite(shape.softcap), "softcap >= 0 (0: none)");
  const std::int64_t sequences = shape.num_sequences;
  operands.expects(q.rows() == rows_per_sequence(shape, q) * sequences &&
                       k.rows() == rows_per_sequence(shape, k) * sequences,
                   "the same number of rows in every sequence");
  operands.dense("q_position", shape.q_position, q.rows(), {DType::i32});
  operands.dense("q_document_begin", shape.q_document_begin, q.rows(), {DType::i32});
  operands.dense("k_position", shape.k_position, k.rows(), {DType::i32});
  operands.expects(shape.known_rows == KnownRows::nothing || q.rows() == k.rows(),
                   "as many keys as queries, whose positions are known");
  operands.expects(shape.dropout.p >= 0 && shape.dropout.p < 1, "0 <= dropout.p < 1");
  if (shape.dropout.p > 0) {
    operands.dense("q_sample", shape.q_sample, sequences, {DType::i64});
    operands.expects(shape.dropout.seq_len > 0, "dropout.seq_len > 0 with dropout");
    operands.expects(
        shape.dropout.first_head >= 0 && shape.dropout.first_head + shape.num_heads <=
                                             shape.dropout.heads_of_layer(shape.num_heads),
        "dropout.heads to hold the heads from dropout.first_head on");
    check_step_scalars(operands, shape.dropout.scalars);
  }
}

/// Pairs of query and key under the causal mask when the shorter side is the end of the longer one:
/// half of all pairs for equal lengths. A window caps the keys of each query. Documents are not
/// known here, so they do not count.
double causal_pairs(const AttentionShape& shape, double tq, double tk) {
  if (tq > tk) std::swap(tq, tk);
  const auto window = static_cast<double>(shape.window);
  const auto first = [&](double rows) {
    if (window == 0 || rows <= window) return rows * rows / 2;
    return rows * window - window * window / 2;
  };
  return first(tk) - first(tk - tq);
}

/// FLOPs of one of the products over query-key pairs, all heads and sequences.
double product_flops(const AttentionShape& shape, const View& q, const View& k) {
  const double pairs = causal_pairs(shape, static_cast<double>(rows_per_sequence(shape, q)),
                                    static_cast<double>(rows_per_sequence(shape, k)));
  return 2 * pairs * static_cast<double>(shape.num_sequences * shape.num_heads * shape.head_dim);
}

}  // namespace

void require_known_rows(const AttentionShape& shape) {
  if (shape.known_rows == KnownRows::nothing || shape.num_sequences == 0) return;
  const std::int64_t rows = shape.q_position.numel() / shape.num_sequences;
  for (std::int64_t row = 0; row < shape.q_position.numel(); ++row) {
    const std::int64_t place = row % rows;
    require(shape.q_position.as<std::int32_t>()[row] == place &&
                shape.k_position.as<std::int32_t>()[row] == place,
            "attention: row {} of a sequence whose positions are known is not at its place", place);
    require(shape.known_rows == KnownRows::in_order ||
                shape.q_document_begin.as<std::int32_t>()[row] == 0,
            "attention: row {} belongs to a second document of a sequence of one", place);
  }
}

void AttentionForward::check() const {
  const Operands operands(name);
  check_shape(operands, shape, q, k);
  const std::int64_t q_cols = shape.num_heads * shape.head_dim;
  const std::int64_t k_cols = shape.num_kv_heads * shape.head_dim;
  operands.strided("q", q, q.rows(), q_cols, kComputeDTypes);
  operands.strided("k", k, k.rows(), k_cols, {q.dtype});
  operands.strided("v", v, k.rows(), k_cols, {q.dtype});
  operands.strided("out", out, q.rows(), q_cols, {q.dtype, sum_dtype(q.dtype)});
  operands.dense("lse", lse, q.rows() * shape.num_heads, {sum_dtype(q.dtype)});
  operands.distinct("out", out, "q", q);
  operands.distinct("out", out, "k", k);
  operands.distinct("out", out, "v", v);
}

Cost AttentionForward::cost() const {
  Cost cost = memory_cost({q, k, v, shape.q_position, shape.q_document_begin, shape.k_position},
                          {out, lse});
  cost.flops = 2 * product_flops(shape, q, k);
  return cost;
}

std::uint64_t AttentionForward::workspace_bytes(int threads) const {
  const std::int64_t plain = reference_forward_elements(rows_per_sequence(shape, k)) *
                             static_cast<std::int64_t>(size_of(sum_dtype(q.dtype)));
  if (q.dtype == DType::f64) return static_cast<std::uint64_t>(plain);
  const std::int64_t tiled = threads * attention_forward_floats(shape.head_dim) * 4;
  return static_cast<std::uint64_t>(std::max(plain, tiled));
}

void AttentionBackward::check() const {
  const Operands operands(name);
  check_shape(operands, shape, q, k);
  const std::int64_t q_cols = shape.num_heads * shape.head_dim;
  const std::int64_t k_cols = shape.num_kv_heads * shape.head_dim;
  operands.strided("q", q, q.rows(), q_cols, kComputeDTypes);
  operands.strided("k", k, k.rows(), k_cols, {q.dtype});
  operands.strided("v", v, k.rows(), k_cols, {q.dtype});
  operands.strided("out", out, q.rows(), q_cols, {q.dtype});
  operands.strided("dout", dout, q.rows(), q_cols, {q.dtype});
  operands.dense("lse", lse, q.rows() * shape.num_heads, {sum_dtype(q.dtype)});
  operands.strided("dq", dq, q.rows(), q_cols, {q.dtype, sum_dtype(q.dtype)});
  operands.strided("dk", dk, k.rows(), k_cols, {dq.dtype});
  operands.strided("dv", dv, k.rows(), k_cols, {dq.dtype});
  operands.expects(shape.sink.defined() == dsink.defined(),
                   "a gradient of the sink if there is one");
  if (dsink.defined()) operands.dense("dsink", dsink, shape.num_heads, {sum_dtype(q.dtype)});
  for (const View& input : {q, k, v, out, dout}) {
    operands.distinct("dq", dq, "an input", input);
    operands.distinct("dk", dk, "an input", input);
    operands.distinct("dv", dv, "an input", input);
  }
}

Cost AttentionBackward::cost() const {
  Cost cost = memory_cost(
      {q, k, v, out, lse, dout, shape.q_position, shape.q_document_begin, shape.k_position},
      {dq, dk, dv});
  cost.flops = 5 * product_flops(shape, q, k);
  return cost;
}

std::uint64_t AttentionBackward::workspace_bytes(int threads) const {
  const std::int64_t tq = rows_per_sequence(shape, q);
  const std::int64_t tk = rows_per_sequence(shape, k);
  const std::int64_t plain = 3 *
                             reference_backward_row(shape.num_heads / shape.num_kv_heads, tq, tk) *
                             static_cast<std::int64_t>(size_of(sum_dtype(q.dtype)));
  if (q.dtype == DType::f64) return static_cast<std::uint64_t>(plain);
  const AttentionBackwardShared shared(shape.num_sequences, tq, shape.num_heads, shape.head_dim,
                                       dq.dtype == DType::f32);
  const std::int64_t tiled =
      (shared.floats() + threads * attention_backward_floats(shape.head_dim)) * 4;
  return static_cast<std::uint64_t>(std::max(plain, tiled));
}

void AttentionMerge::check() const {
  const Operands operands(name);
  operands.expects(num_sequences >= 0, "num_sequences >= 0");
  operands.expects(num_heads > 0 && out.cols() % num_heads == 0, "out to hold num_heads heads");
  operands.expects(num_sequences == 0 ? out.rows() == 0 : out.rows() % num_sequences == 0,
                   "the same number of rows in every sequence");
  operands.strided("out", out, out.rows(), out.cols(), {DType::f64, DType::f32});
  operands.strided("part_out", part_out, out.rows(), out.cols(), {out.dtype});
  operands.dense("lse", lse, out.rows() * num_heads, {out.dtype});
  operands.dense("part_lse", part_lse, lse.numel(), {out.dtype});
  operands.distinct("out", out, "part_out", part_out);
  operands.distinct("lse", lse, "part_lse", part_lse);
}

Cost AttentionMerge::cost() const {
  return memory_cost({out, lse, part_out, part_lse}, {out, lse});
}

void Rope::check() const {
  const Operands operands(name);
  operands.expects(head_dim > 0 && x.cols() % head_dim == 0, "x to hold whole heads of head_dim");
  operands.expects(rotary_dim > 0 && rotary_dim <= head_dim && rotary_dim % 2 == 0,
                   "rotary_dim to be even and within head_dim");
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.strided("y", y, x.rows(), x.cols(), {x.dtype});
  operands.expects(y.data != x.data || y.row_stride == x.row_stride || x.rows() <= 1,
                   "y to have the strides of x when it is x");
  operands.dense("cosine", cosine, cosine.rows() * (rotary_dim / 2), {sum_dtype(x.dtype)});
  operands.dense("sine", sine, cosine.numel(), {sum_dtype(x.dtype)});
  operands.dense("position", position, x.rows(), {DType::i32});
}

Cost Rope::cost() const {
  Cost cost = memory_cost({x, position}, {y});
  // One row of each table per row of x.
  cost.bytes_read +=
      static_cast<double>(x.rows() * rotary_dim) * static_cast<double>(size_of(cosine.dtype));
  return cost;
}

}  // namespace llmtrain::kernels
