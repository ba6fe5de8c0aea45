#include "kernels/elementwise.hpp"

#include "kernels/activations.hpp"
#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void Add::check() const {
  const Operands operands(name);
  operands.strided("a", a, a.rows(), a.cols(), kComputeDTypes);
  operands.strided("b", b, a.rows(), a.cols(), {a.dtype});
  operands.strided("y", y, a.rows(), a.cols(), {a.dtype});
}

Cost Add::cost() const { return memory_cost({a, b}, {y}); }

void ScaleCast::check() const {
  const Operands operands(name);
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.strided("y", y, x.rows(), x.cols(), kComputeDTypes);
  if (x.dtype != y.dtype) operands.distinct("y", y, "x", x);
}

Cost ScaleCast::cost() const { return memory_cost({x, accumulate ? y : View{}}, {y}); }

void Normalize::check() const {
  const Operands operands(name);
  operands.dense("squared_norm", squared_norm, 1, {DType::f64});
  as_scale_cast(1).check();
}

Cost Normalize::cost() const { return memory_cost({x, squared_norm}, {y}); }

void Fill::check() const {
  const Operands operands(name);
  operands.dense("y", y, y.numel(), {DType::f64, DType::f32, DType::bf16, DType::f16, DType::u8});
}

Cost Fill::cost() const { return memory_cost({}, {y}); }

void ActivationForward::check() const {
  const Operands operands(name);
  operands.expects(static_cast<int>(activation) < kNumActivations, "a known activation");
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  if (up.defined()) operands.strided("up", up, x.rows(), x.cols(), {x.dtype});
  operands.strided("y", y, x.rows(), x.cols(), {x.dtype});
}

Cost ActivationForward::cost() const { return memory_cost({x, up}, {y}); }

void ActivationBackward::check() const {
  const Operands operands(name);
  operands.expects(static_cast<int>(activation) < kNumActivations, "a known activation");
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.strided("dy", dy, x.rows(), x.cols(), {x.dtype});
  operands.strided("dx", dx, x.rows(), x.cols(), {x.dtype});
  if (up.defined()) {
    operands.strided("up", up, x.rows(), x.cols(), {x.dtype});
    operands.strided("dup", dup, x.rows(), x.cols(), {x.dtype});
    operands.distinct("dx", dx, "dy", dy);
    operands.distinct("dup", dup, "dx", dx);
  } else {
    operands.absent("dup", dup);
  }
}

Cost ActivationBackward::cost() const { return memory_cost({x, up, dy}, {dx, dup}); }

void Dropout::check() const {
  const Operands operands(name);
  operands.expects(p >= 0 && p < 1, "0 <= p < 1");
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.dense("row_id", row_id, x.rows(), {DType::i64});
  operands.strided("y", y, x.rows(), x.cols(), {x.dtype});
  check_step_scalars(operands, scalars);
}

Cost Dropout::cost() const { return memory_cost({x, row_id}, {y}); }

}  // namespace llmtrain::kernels
