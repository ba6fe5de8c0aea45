#include "kernels/loss.hpp"

#include <cmath>

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

void check_part(const Operands& operands, const VocabPart& part, std::int64_t here) {
  operands.expects(part.first >= 0 && part.first + here <= part.end(part.first + here),
                   "a part within its vocabulary");
}

void check_classes(const Operands& operands, const View& logits, const View& target,
                   std::int64_t num_classes, double softcap) {
  operands.expects(num_classes > 0 && num_classes <= logits.cols(),
                   "0 < num_classes <= columns of logits");
  operands.expects(softcap >= 0 && std::isfinite(softcap), "softcap >= 0 (0: none)");
  operands.strided("logits", logits, logits.rows(), logits.cols(), kComputeDTypes);
  operands.dense("target", target, logits.rows(), {DType::i32});
}

}  // namespace

void EmbeddingForward::check() const {
  const Operands operands(name);
  operands.dense("table", table, table.numel(), kComputeDTypes);
  operands.dense("id", id, id.numel(), {DType::i32});
  operands.dense("y", y, id.numel() * table.cols(), {table.dtype});
  operands.expects(y.cols() == table.cols(), "y to be as wide as table");
  operands.distinct("y", y, "table", table);
  check_part(operands, part, table.rows());
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
  check_part(operands, part, dtable.rows());
}

Cost EmbeddingBackward::cost() const {
  Cost cost = memory_cost({id, dy}, {});
  const auto touched = static_cast<double>(dy.numel()) * static_cast<double>(size_of(dtable.dtype));
  cost.bytes_read += touched;
  cost.bytes_written = touched;
  return cost;
}

void LogitStatistics::check() const {
  const Operands operands(name);
  check_classes(operands, logits, target, num_classes, softcap);
  check_part(operands, part, num_classes);
  operands.dense("statistics", statistics, 3 * logits.rows(), {sum_dtype(logits.dtype)});
}

Cost LogitStatistics::cost() const { return memory_cost({logits, target}, {statistics}); }

void CrossEntropy::check() const {
  const Operands operands(name);
  check_classes(operands, logits, target, num_classes, softcap);
  check_part(operands, part, num_classes);
  if (statistics.defined()) {
    operands.dense("statistics", statistics, 3 * logits.rows() * parts(),
                   {sum_dtype(logits.dtype)});
    operands.expects(parts() > 0 || logits.rows() == 0, "statistics of at least one part");
  } else {
    operands.expects(part.end(num_classes) == num_classes, "statistics of all parts");
  }
  operands.dense("loss", loss, logits.rows(), {sum_dtype(logits.dtype)});
  operands.expects(z_loss_coef >= 0 && std::isfinite(z_loss_coef), "z_loss_coef >= 0 (0: none)");
  operands.expects(z_loss.defined() == (z_loss_coef > 0), "z_loss where it has a coefficient");
  if (z_loss.defined()) operands.dense("z_loss", z_loss, logits.rows(), {loss.dtype});
  check_step_scalars(operands, scalars);
  if (decision.defined()) check_decision(operands, decision);
  if (!dlogits.defined()) return;
  if (logits.dtype == DType::f32) {
    operands.strided("dlogits", dlogits, logits.rows(), logits.cols(),
                     {DType::f32, DType::bf16, DType::f16});
  } else {
    operands.strided("dlogits", dlogits, logits.rows(), logits.cols(), {logits.dtype});
  }
  const auto row_bytes = [](const View& view) {
    return view.row_stride * static_cast<std::int64_t>(size_of(view.dtype));
  };
  operands.expects(
      dlogits.data != logits.data || logits.rows() <= 1 || row_bytes(dlogits) == row_bytes(logits),
      "rows of dlogits to begin where those of logits do when it aliases them");
}

Cost CrossEntropy::cost() const {
  Cost cost = memory_cost({logits, target, statistics}, {loss, z_loss, dlogits});
  // Given the statistics, the loss alone asks for no logit.
  if (statistics.defined() && !dlogits.defined()) {
    cost.bytes_read -= static_cast<double>(logits.bytes());
  }
  return cost;
}

void Sum::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), {DType::f32, DType::f64});
  operands.dense("out", out, 1, {DType::f64});
}

Cost Sum::cost() const { return memory_cost({x, out}, {out}); }

}  // namespace llmtrain::kernels
