#pragma once
/// An update by a rule, on whichever device a test's Machine is.

#include <cmath>
#include <vector>

#include "tests/support/every_rule.hpp"
#include "tests/support/lists_of_one.hpp"

namespace llmtrain::test {

/// kernels::UpdateDecision of update number t, whose gradients count `grad_scale`; corrections are
/// those of the betas of every_rule().
inline std::vector<double> decision_for_rules(double grad_scale, int t, bool applies = true) {
  return {0,
          1,
          applies ? 1.0 : 0.0,
          grad_scale,
          0.5,
          1,
          static_cast<double>(t),
          1,
          0,
          1 - std::pow(0.8, t),
          std::sqrt(1 - std::pow(0.9, t)),
          0};
}

/// The tensors of one parameter with n elements in memory of `machine`: whole masters with a bf16
/// copy, and states as an update may find them.
template <class Machine>
struct RuleCase {
  std::vector<Tensor> all;
  kernels::RuleTensors tensors;

  /// The parameter begins `offset` elements into its memory.
  RuleCase(Machine& machine, const kernels::UpdateRule& rule, std::int64_t n,
           std::int64_t offset = 0)
      : tensors{.to = {}, .states = {}, .lr_scale = 0.1, .weight_decay = 0.05} {
    const auto keep = [&](const Tensor& tensor) -> View {
      return all.emplace_back(offset == 0 ? tensor : tensor.columns(offset, n));
    };
    const Shape shape{1, n + offset};
    tensors.to.parameter = keep(machine.operand("p", shape));
    tensors.to.gradient = keep(machine.operand("g", shape));
    tensors.to.compute_copy = keep(machine.empty(shape, DType::bf16));
    std::size_t at = 0;
    for (const std::string_view name : kernels::states_of(rule)) {
      const std::vector<double> squares(static_cast<std::size_t>(shape.numel()), 2.5);
      tensors.states[at++] = keep(is_square(name) ? machine.of(squares, shape, machine.compute())
                                                  : machine.operand(name, shape));
    }
  }
};

template <class Machine>
Tensor rule_decision(Machine& machine, double grad_scale, int t, bool applies = true) {
  return machine.of(decision_for_rules(grad_scale, t, applies), {kernels::UpdateDecision::kScalars},
                    DType::f64);
}

inline constexpr kernels::WeightDecay kEveryDecay[] = {kernels::WeightDecay::in_gradient,
                                                       kernels::WeightDecay::before_step,
                                                       kernels::WeightDecay::after_step};

}  // namespace llmtrain::test
