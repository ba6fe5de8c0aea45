#pragma once
/// Kernels that take lists, for one tensor.

#include "kernels/optimizer.hpp"

namespace llmtrain::test {

/// Runs an update of one parameter with the numbers of `update`.
template <class Machine>
void run_adam(Machine& machine, const kernels::AdamTensors& tensors, kernels::AdamUpdate update) {
  update.tensors = std::span(&tensors, 1);
  machine.run(update);
}

template <class Machine>
void run_rule(Machine& machine, const kernels::RuleTensors& tensors, kernels::RuleUpdate update) {
  update.tensors = std::span(&tensors, 1);
  machine.run(update);
}

template <class Machine>
void run_squared_norm(Machine& machine, const View& gradient, const View& out) {
  machine.run(kernels::SquaredNorm{.gradients = std::span(&gradient, 1), .table = {}, .out = out});
}

}  // namespace llmtrain::test
