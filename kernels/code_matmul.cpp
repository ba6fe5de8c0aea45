#include "kernels/code_matmul.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void CodeMatmul::check() const {
  const Operands operands(name);
  operands.strided("a", a, m(), k(), {DType::u8});
  operands.strided("b", b, n(), k(), {DType::u8});
  operands.strided("c", c, m(), n(), {DType::bf16, DType::f32});
  operands.dense("a_scale_inv", a_scale_inv, 1, {DType::f32});
  operands.dense("b_scale_inv", b_scale_inv, 1, {DType::f32});
  operands.expects(takes(m(), n(), k()), "sizes that are multiples of 16");
  for (const View* view : {&a, &b, &c}) {
    operands.expects(view->rows() <= 1 || view->row_stride % kUnit == 0,
                     "rows that lie multiples of 16 elements apart");
  }
  for (const NumberFormat& format : {a_format, b_format}) {
    operands.expects(format == kE4M3 || format == kE5M2, "codes of e4m3 or e5m2");
  }
  operands.expects(a_format == kE4M3 || b_format == kE4M3, "an operand in e4m3");
  if (!bias.defined()) return;
  operands.expects(!accumulate, "no bias when it accumulates");
  operands.expects(c.dtype == DType::bf16, "a bias only beside c in bf16");
  operands.dense("bias", bias, n(), {DType::bf16, DType::f32});
}

Cost CodeMatmul::cost() const {
  Cost cost = memory_cost({a, b, bias, accumulate ? c : View{}}, {c});
  cost.flops = 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k());
  return cost;
}

}  // namespace llmtrain::kernels
