#pragma once
/// An update with states of 8 bits, on whichever device a test's Machine is.

#include <vector>

#include "kernels/eight_bit.hpp"
#include "lib/base/philox.hpp"
#include "tests/support/rule_case.hpp"

namespace llmtrain::test {

/// Every alternative of EightBitRule, with the betas of rule_decision().
inline std::vector<kernels::EightBitRule> every_eight_bit_rule() {
  using namespace kernels::rules;
  return {Adam{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6}, Lion{.beta1 = 0.8, .beta2 = 0.9}};
}

/// Forms of the master of an update.
enum class Form : std::uint8_t { whole, with_copy, halves, stochastic };
inline constexpr Form kEveryForm[] = {Form::whole, Form::with_copy, Form::halves, Form::stochastic};

/// The tensors of one parameter with n elements in memory of `machine`, and states as an update may
/// find them: any codes, and scales of which the first is zero.
template <class Machine>
struct EightBitCase {
  std::vector<Tensor> all;
  kernels::EightBitTensors tensors;

  /// The parameter begins `offset` elements into its memory.
  EightBitCase(Machine& machine, const kernels::EightBitRule& rule, std::int64_t n,
               Form form = Form::with_copy, std::int64_t offset = 0)
      : tensors{.to = {}, .codes = {}, .scales = {}, .lr_scale = 0.1, .weight_decay = 0.05} {
    const auto keep = [&](const Tensor& tensor) -> View {
      return all.emplace_back(offset == 0 ? tensor : tensor.columns(offset, n));
    };
    const Shape shape{1, n + offset};
    add_master(machine, keep, form, shape);
    for (std::size_t k = 0; k < kernels::states_of(rule).size(); ++k) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(shape.numel()));
      const PhiloxKey key = philox_key(7, "codes", k == 0 ? "m" : "v");
      for (std::size_t i = 0; i < codes.size(); ++i) {
        codes[i] = static_cast<std::uint8_t>(philox_word(key, 0, i));
      }
      tensors.codes[k] = keep(machine.integers(codes).reshape(shape));
      std::vector<double> scales(static_cast<std::size_t>(kernels::dynamic_blocks(n)));
      for (std::size_t b = 0; b < scales.size(); ++b)
        scales[b] = 0.375 * static_cast<double>(b % 5);
      tensors.scales[k] =
          all.emplace_back(machine.of(scales, {kernels::dynamic_blocks(n)}, DType::f32));
    }
  }

 private:
  template <class Keep>
  void add_master(Machine& machine, const Keep& keep, Form form, const Shape& shape) {
    const std::vector<double> zeros(static_cast<std::size_t>(shape.numel()), 0.0);
    kernels::UpdateOperands& to = tensors.to;
    to.gradient = keep(machine.operand("g", shape));
    if (form == Form::whole || form == Form::with_copy) {
      to.parameter = keep(machine.operand("p", shape));
      if (form == Form::with_copy) to.compute_copy = keep(machine.of(zeros, shape, DType::bf16));
      return;
    }
    to.compute_copy = keep(machine.normals("p", shape, DType::bf16, DType::bf16));
    if (form == Form::halves) {
      const std::vector<std::uint16_t> low(static_cast<std::size_t>(shape.numel()), 99);
      to.remainder = keep(machine.integers(low).reshape(shape));
    } else {
      to.rounding = {.on = true,
                     .key = philox_key(3, "stochastic rounding", "w"),
                     .first = 5,
                     .columns = shape.numel()};
    }
  }
};

/// Runs an update of one parameter with the numbers of `update`.
template <class Machine>
void run_eight_bit(Machine& machine, const kernels::EightBitTensors& tensors,
                   kernels::EightBitUpdate update) {
  update.tensors = std::span(&tensors, 1);
  machine.run(update);
}

/// The bytes of all tensors of a case.
template <class Case>
std::vector<std::vector<std::byte>> bytes_of_all(const Case& c) {
  std::vector<std::vector<std::byte>> all;
  for (const Tensor& tensor : c.all) {
    std::vector<std::byte>& bytes = all.emplace_back(tensor.view().bytes());
    tensor.device().copy_to_host(bytes, tensor.reshape({tensor.numel()}));
  }
  return all;
}

}  // namespace llmtrain::test
