#include "kernels/block_moments.hpp"

#include "kernels/operands.hpp"
#include "kernels/update_operands.hpp"

namespace llmtrain::kernels {

void BlockSquares::check() const {
  const Operands operands(name);
  operands.expects(block > 0, "blocks of at least one element");
  operands.dense("g", g, out.numel() * block, {DType::f64, DType::f32});
  operands.dense("out", out, out.numel(), {DType::f64});
}

Cost BlockSquares::cost() const { return memory_cost({g}, {out}); }

void BlockMoments::check() const {
  const Operands operands(name);
  operands.dense("moment", moment, moment.numel(), {DType::f64, DType::f32});
  operands.dense("squares", squares, moment.numel(), {DType::f64});
  check_decision(operands, decision);
  operands.expects(count > 0, "blocks of at least one element");
  operands.expects(beta2 >= 0 && beta2 < 1 && decay_power >= 0, "beta2 in [0, 1)");
}

Cost BlockMoments::cost() const { return memory_cost({squares, moment}, {moment}); }

void BlockAdamUpdate::check() const {
  const Operands operands(name);
  check_update(operands, to);
  check_decision(operands, decision);
  operands.expects(block > 0 && to.numel() % block == 0, "whole blocks");
  operands.dense("m", m, to.numel(), {to.gradient.dtype});
  operands.dense("moment", moment, to.numel() / block, {to.gradient.dtype});
  operands.expects(beta1 >= 0 && beta1 < 1, "beta1 in [0, 1)");
}

Cost BlockAdamUpdate::cost() const {
  Cost cost = update_cost(to);
  cost += memory_cost({m, moment}, {m});
  return cost;
}

}  // namespace llmtrain::kernels
