#include "kernels/loss.hpp"

#include <cmath>

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void EmbeddingForward::check() const {
  const Operands operands(name);
  operands.dense("table", table, table.numel(), kComputeDTypes);
  operands.dense("id", id, id.numel(), {DType::i32});
  operands.dense("y", y, id.numel() * table.cols(), {table.dtype});
  operands.expects(y.cols() == table.cols(), "y to be as wide as table");
  operands.distinct("y", y, "table", table);
}

Cost EmbeddingForward::cost() const {
  Cost cost = memory_cost({id}, {y});
  cost.bytes_read += static_cast<double>(y.bytes()) * (accumulate ? 2 : 1);
  return cost;
}

void EmbeddingBackward::check() const {
  const Operands operands(name);
  operands.dense("dy", dy, id.numel() * dtable.cols(), kComputeDTypes);
  operands.dense("id", id, id.numel(), {DType::i32});
  operands.dense("dtable", dtable, dtable.numel(), {sum_dtype(dy.dtype)});
  operands.expects(dy.cols() == dtable.cols(), "dy to be as wide as dtable");
  operands.distinct("dtable", dtable, "dy", dy);
}

Cost EmbeddingBackward::cost() const {
  Cost cost = memory_cost({id, dy}, {});
  const auto touched = static_cast<double>(dy.numel()) * static_cast<double>(size_of(dtable.dtype));
  cost.bytes_read += touched;
  cost.bytes_written = touched;
  return cost;
}

void CrossEntropy::check() const {
  const Operands operands(name);
  operands.expects(num_classes > 0 && num_classes <= logits.cols(),
                   "0 < num_classes <= columns of logits");
  operands.expects(softcap >= 0 && std::isfinite(softcap), "softcap >= 0 (0: none)");
  operands.strided("logits", logits, logits.rows(), logits.cols(), {DType::f64, DType::f32});
  operands.dense("target", target, logits.rows(), {DType::i32});
  operands.dense("loss", loss, logits.rows(), {sum_dtype(logits.dtype)});
  check_step_scalars(operands, scalars);
  if (decision.defined()) check_decision(operands, decision);
  if (!dlogits.defined()) return;
  if (logits.dtype == DType::f64) {
    operands.strided("dlogits", dlogits, logits.rows(), logits.cols(), {DType::f64});
  } else {
    operands.strided("dlogits", dlogits, logits.rows(), logits.cols(),
                     {DType::f32, DType::bf16, DType::f16});
  }
  const auto row_bytes = [](const View& view) {
    return view.row_stride * static_cast<std::int64_t>(size_of(view.dtype));
  };
  operands.expects(
      dlogits.data != logits.data || logits.rows() <= 1 || row_bytes(dlogits) == row_bytes(logits),
      "rows of dlogits to begin where those of logits do when it aliases them");
}

Cost CrossEntropy::cost() const { return memory_cost({logits, target}, {loss, dlogits}); }

void Sum::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), {DType::f32, DType::f64});
  operands.dense("out", out, 1, {DType::f64});
}

Cost Sum::cost() const { return memory_cost({x, out}, {out}); }

}  // namespace llmtrain::kernels
