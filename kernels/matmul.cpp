#include "kernels/matmul.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void Matmul::check() const {
  const Operands operands(name);
  operands.strided("a", a, transpose_a ? k() : m(), transpose_a ? m() : k(), kComputeDTypes);
  operands.strided("b", b, transpose_b ? n() : k(), transpose_b ? k() : n(), {a.dtype});
  if (a.dtype == DType::bf16) {
    operands.strided("c", c, m(), n(), {DType::bf16, DType::f32});
  } else {
    operands.strided("c", c, m(), n(), {a.dtype});
  }
  operands.distinct("c", c, "a", a);
  operands.distinct("c", c, "b", b);
  if (bias.defined()) {
    operands.expects(!accumulate, "no bias when it accumulates");
    operands.dense("bias", bias, n(), {c.dtype, DType::f32});
  }
}

Cost Matmul::cost() const {
  Cost cost = memory_cost({a, b, bias, accumulate ? c : View{}}, {c});
  cost.flops = 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k());
  return cost;
}

std::uint64_t Matmul::workspace_bytes(int) const { return 0; }

void ColumnSum::check() const {
  const Operands operands(name);
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.dense("out", out, x.cols(), {sum_dtype(x.dtype)});
}

Cost ColumnSum::cost() const { return memory_cost({x, out}, {out}); }

std::uint64_t ColumnSum::workspace_bytes(int) const {
  return static_cast<std::uint64_t>(num_row_blocks(x.rows()) * x.cols()) * size_of(out.dtype);
}

}  // namespace llmtrain::kernels
