#pragma once
/// An update whose states are bf16, on whichever device a test's Machine is.

#include <algorithm>
#include <vector>

#include "tests/support/rule_case.hpp"

namespace llmtrain::test {

/// Forms of the masters of an update.
enum class MasterKind : std::uint8_t { whole, with_bf16_copy, halves, none };
inline constexpr MasterKind kEveryMaster[] = {MasterKind::whole, MasterKind::with_bf16_copy,
                                              MasterKind::halves, MasterKind::none};

/// Halves that round states of n elements: of a whole parameter, of its later elements, of some of
/// its columns, and of a slice of these.
inline std::vector<kernels::StateRounding> every_state_rounding(std::int64_t n) {
  const std::int64_t whole = std::max<std::int64_t>(1, n);
  std::vector<kernels::StateRounding> all;
  for (const StochasticRounding& words :
       {StochasticRounding{.on = true, .columns = whole},
        StochasticRounding{.on = true, .first = 4099, .columns = whole},
        StochasticRounding{.on = true, .first = 6, .columns = 7, .stride = 19},
        StochasticRounding{
            .on = true, .first = 5, .columns = 1000, .stride = 1003, .before = 37}}) {
    kernels::StateRounding& rounding = all.emplace_back(kernels::StateRounding{.words = words});
    for (std::size_t k = 0; k < rounding.keys.size(); ++k) {
      rounding.keys[k] = philox_key(3, "rounding of states", std::string("w#") + char('a' + k));
    }
  }
  return all;
}

/// One parameter of n elements, which begin `offset` into their memory, states `states_offset`.
template <class Machine>
struct Bf16StatesCase {
  /// What an update writes and a test can read: all but remainders.
  std::vector<Tensor> all;
  kernels::RuleTensors tensors;

  Bf16StatesCase(Machine& machine, const kernels::UpdateRule& rule, std::int64_t n, MasterKind kind,
                 const kernels::StateRounding& rounding, std::int64_t offset = 0,
                 std::int64_t states_offset = 0)
      : tensors{
            .to = {}, .states = {}, .lr_scale = 0.1, .weight_decay = 0.05, .rounding = rounding} {
    const Shape shape{1, n + offset};
    const auto part = [&](const Tensor& tensor) {
      return offset == 0 ? tensor : tensor.columns(offset, n);
    };
    const auto keep = [&](const Tensor& tensor) -> View { return all.emplace_back(part(tensor)); };
    gradient_ = part(machine.operand("g", shape));
    tensors.to.gradient = gradient_;
    if (kind == MasterKind::whole || kind == MasterKind::with_bf16_copy) {
      tensors.to.parameter = keep(machine.operand("p", shape));
    } else {
      tensors.to.compute_copy = keep(machine.normals("p", shape, DType::bf16, DType::bf16));
    }
    if (kind == MasterKind::with_bf16_copy) {
      tensors.to.compute_copy = keep(machine.of(
          std::vector<double>(static_cast<std::size_t>(shape.numel())), shape, DType::bf16));
    }
    if (kind == MasterKind::halves) {
      const std::vector<std::uint16_t> low(static_cast<std::size_t>(shape.numel()), 99);
      remainder_ = part(machine.integers(low).reshape(shape));
      tensors.to.remainder = remainder_;
    }
    if (kind == MasterKind::none) {
      tensors.to.rounding = {.on = true,
                             .key = philox_key(3, "stochastic rounding", "w"),
                             .columns = std::max<std::int64_t>(1, n)};
    }
    std::size_t at = 0;
    const Shape of_states{1, n + states_offset};
    for (const std::string_view name : kernels::states_of(rule)) {
      const std::vector<double> squares(static_cast<std::size_t>(of_states.numel()), 2.5);
      const Tensor state = is_square(name)
                               ? machine.of(squares, of_states, DType::bf16)
                               : machine.normals(name, of_states, DType::bf16, DType::bf16);
      tensors.states[at++] =
          all.emplace_back(states_offset == 0 ? state : state.columns(states_offset, n));
    }
  }

  /// The same as an AdamUpdate has it; `rule` was one with its states.
  kernels::AdamTensors for_adam() const {
    return {.to = tensors.to,
            .m = tensors.states[0],
            .v = tensors.states[1],
            .lr_scale = tensors.lr_scale,
            .weight_decay = tensors.weight_decay,
            .rounding = tensors.rounding};
  }

 private:
  Tensor gradient_, remainder_;
};

/// The rule whose states are those of Adam.
inline kernels::UpdateRule rule_with_states_of_adam() {
  return kernels::rules::AdamEpsHat{{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6}};
}

/// Rules that keep states.
inline std::vector<kernels::UpdateRule> every_rule_with_states() {
  std::vector<kernels::UpdateRule> all = every_rule();
  std::erase_if(all, [](const auto& rule) { return kernels::states_of(rule).empty(); });
  return all;
}

}  // namespace llmtrain::test
