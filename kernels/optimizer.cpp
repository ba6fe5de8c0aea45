#include "kernels/optimizer.hpp"

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {
void check_decision(const Operands& operands, const View& decision) {
  operands.dense("decision", decision, UpdateDecision::kScalars, {DType::f64});
}

void check_update(const Operands& operands, const UpdateOperands& to) {
  operands.dense("parameter", to.parameter, to.parameter.numel(), {DType::f64, DType::f32});
  operands.dense("gradient", to.gradient, to.parameter.numel(), {to.parameter.dtype});
  if (to.compute_copy.defined()) {
    operands.dense("compute_copy", to.compute_copy, to.parameter.numel(),
                   {DType::f32, DType::bf16});
    operands.distinct("compute_copy", to.compute_copy, "parameter", to.parameter);
  }
  check_decision(operands, to.decision);
}
}  // namespace

void SquaredNorm::check() const {
  const Operands operands(name);
  operands.dense("g", g, g.numel(), {DType::f64, DType::f32});
  operands.dense("out", out, 1, {DType::f64});
}

Cost SquaredNorm::cost() const { return memory_cost({g}, {out}); }

std::uint64_t SquaredNorm::workspace_bytes(int) const {
  return static_cast<std::uint64_t>((g.numel() + kBlock - 1) / kBlock) * sizeof(double);
}

void ClipByValue::check() const {
  const Operands operands(name);
  operands.dense("g", g, g.numel(), {DType::f64, DType::f32});
  operands.expects(limit >= 0, "limit >= 0");
}

Cost ClipByValue::cost() const { return memory_cost({g}, {g}); }

void DecideUpdate::check() const {
  const Operands operands(name);
  operands.dense("squares", squares, squares.numel(), {DType::f64});
  if (loss_sum.defined()) operands.dense("loss_sum", loss_sum, 1, {DType::f64});
  check_decision(operands, decision);
  check_step_scalars(operands, scalars);
  operands.expects(max_norm > 0, "max_norm > 0");
  operands.expects(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas in [0, 1)");
}

Cost DecideUpdate::cost() const { return memory_cost({squares, loss_sum, decision}, {decision}); }

void AdamUpdate::check() const {
  const Operands operands(name);
  check_update(operands, to);
  operands.dense("m", m, to.parameter.numel(), {to.parameter.dtype});
  operands.dense("v", v, to.parameter.numel(), {to.parameter.dtype});
  operands.expects(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas in [0, 1)");
}

Cost AdamUpdate::cost() const {
  return memory_cost({to.parameter, to.gradient, m, v}, {to.parameter, to.compute_copy, m, v});
}

void SgdUpdate::check() const {
  const Operands operands(name);
  check_update(operands, to);
  if (momentum_buffer.defined()) {
    operands.dense("momentum_buffer", momentum_buffer, to.parameter.numel(), {to.parameter.dtype});
  } else {
    operands.expects(momentum == 0 && !nesterov, "a momentum_buffer for momentum");
  }
}

Cost SgdUpdate::cost() const {
  return memory_cost({to.parameter, to.gradient, momentum_buffer},
                     {to.parameter, to.compute_copy, momentum_buffer});
}

void ScaleUpdate::check() const {
  const Operands operands(name);
  as_scale_cast({}).check();
  check_decision(operands, decision);
}

Cost ScaleUpdate::cost() const { return as_scale_cast({}).cost(); }

}  // namespace llmtrain::kernels
