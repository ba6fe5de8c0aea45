#include "kernels/expert_slots.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void AssignSlots::check() const {
  const Operands operands(name);
  operands.expects(ranks > 0 && offsets.numel() > 1 && (offsets.numel() - 1) % ranks == 0,
                   "as many experts on every rank");
  operands.expects(even_rows > 0, "a share above 0");
  operands.dense("offsets", offsets, offsets.numel(), {DType::i32});
  operands.dense("source", source, slots() * ranks, {DType::i32});
  operands.dense("expert", expert, source.numel(), {DType::i32});
  operands.dense("place", place, place.numel(), {DType::i32});
  if (needed.defined()) operands.dense("needed", needed, 1, {DType::f64});
}

Cost AssignSlots::cost() const { return memory_cost({offsets}, {source, expert, place}); }

void TakeRows::check() const {
  const Operands operands(name);
  operands.dense("x", x, x.numel(), kComputeDTypes);
  operands.dense("from", from, y.rows(), {DType::i32});
  operands.dense("y", y, y.numel(), {x.dtype});
  operands.expects(y.cols() == x.cols(), "y to be as wide as x");
  operands.distinct("y", y, "x", x);
}

Cost TakeRows::cost() const {
  Cost cost = memory_cost({from}, {y});
  cost.bytes_read += static_cast<double>(y.bytes());
  return cost;
}

}  // namespace llmtrain::kernels
