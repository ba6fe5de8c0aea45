#include "kernels/eight_bit.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

/// A state of one block: its codes and its scale.
struct CodedBlock {
  const DynamicMap& map;
  std::uint8_t* codes;
  float* scale;
  std::int64_t count;

  float value(std::int64_t i) const { return map.values[codes[i]] * *scale; }
  void code(const std::array<float, kDynamicBlock>& values) const {
    float largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, std::abs(values[static_cast<std::size_t>(i)]));
    }
    const DynamicScale block(largest, count == kDynamicBlock);
    *scale = block.scale;
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = block.scaled(values[static_cast<std::size_t>(i)]);
      codes[i] = static_cast<std::uint8_t>(map.code_of(x));
    }
  }
};

template <class Rule, class T>
void update_block(const EightBitTensors& of, const RuleInStep<Rule, T>& rule, std::int64_t begin,
                  std::int64_t count) {
  const Masters<T> masters(of.to, rule.update);
  const auto coded = [&](std::size_t k) {
    return CodedBlock{dynamic_map_of(static_cast<int>(k)), of.codes[k].as<std::uint8_t>() + begin,
                      of.scales[k].as<float>() + begin / kDynamicBlock, count};
  };
  std::array<std::array<float, kDynamicBlock>, kStatesOf<Rule>> values{};
  for (std::int64_t i = 0; i < count; ++i) {
    T states[kStatesOf<Rule>];
    for (std::size_t k = 0; k < kStatesOf<Rule>; ++k) states[k] = coded(k).value(i);
    const T gradient = of.to.gradient.as<T>()[begin + i];
    masters.put(begin + i, rule.apply(masters.get(begin + i), gradient, states));
    for (std::size_t k = 0; k < kStatesOf<Rule>; ++k) {
      values[k][static_cast<std::size_t>(i)] = static_cast<float>(states[k]);
    }
  }
  for (std::size_t k = 0; k < kStatesOf<Rule>; ++k) coded(k).code(values[k]);
}

void eight_bit_update(const KernelCtx&, const EightBitUpdate& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  for (const EightBitTensors& of : op.tensors) {
    with_master_type(of.to, [&]<class T>() {
      std::visit(
          [&]<class Rule>(const Rule& rule) {
            const RuleInStep<Rule, T> in_step(rule, op.decay, of.lr_scale, of.weight_decay,
                                              decision);
            const std::int64_t n = of.to.numel();
            for (std::int64_t at = 0; at < n; at += kDynamicBlock) {
              update_block<Rule, T>(of, in_step, at, std::min(kDynamicBlock, n - at));
            }
          },
          op.rule);
    });
  }
}

}  // namespace

void add_eight_bit_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<EightBitUpdate, eight_bit_update>());
}

}  // namespace llmtrain::kernels::reference
