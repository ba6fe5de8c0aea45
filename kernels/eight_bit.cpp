#include "kernels/eight_bit.hpp"

#include "kernels/operands.hpp"
#include "kernels/update_operands.hpp"

namespace llmtrain::kernels {

std::vector<EightBitUpdate::Row> EightBitUpdate::rows(std::span<const EightBitTensors> tensors) {
  return table_rows<Row>(tensors, [](const EightBitTensors& t) {
    Row row{.place = {.numel = t.to.numel()},
            .parameter = t.to.parameter.data,
            .gradient = t.to.gradient.data,
            .compute_copy = t.to.compute_copy.data,
            .remainder = t.to.remainder.data,
            .codes = {},
            .scales = {},
            .lr_scale = t.lr_scale,
            .weight_decay = t.weight_decay,
            .rounding = t.to.rounding};
    for (std::size_t i = 0; i < kMaxEightBitStates; ++i) {
      row.codes[i] = t.codes[i].data;
      row.scales[i] = t.scales[i].data;
    }
    return row;
  });
}

void EightBitUpdate::check() const {
  const Operands operands(name);
  check_table<Row>(operands, table, tensors.size());
  check_decision(operands, decision);
  const std::span<const std::string_view> names = states_of(rule);
  for (const EightBitTensors& t : tensors) {
    check_update(operands, t.to);
    operands.expects(alike(t.to, tensors.front().to), "parameters of one kind");
    for (std::size_t i = 0; i < kMaxEightBitStates; ++i) {
      if (i < names.size()) {
        operands.dense(names[i], t.codes[i], t.to.numel(), {DType::u8});
        operands.dense("scale", t.scales[i], dynamic_blocks(t.to.numel()), {DType::f32});
      } else {
        operands.absent("a state that the rule does not have", t.codes[i]);
        operands.absent("a scale that the rule does not have", t.scales[i]);
      }
    }
  }
}

Cost EightBitUpdate::cost() const {
  Cost cost;
  for (const EightBitTensors& t : tensors) {
    cost += update_cost(t.to);
    for (std::size_t i = 0; i < kMaxEightBitStates; ++i) {
      cost += memory_cost({t.codes[i], t.scales[i]}, {t.codes[i], t.scales[i]});
    }
  }
  return cost;
}

std::int64_t EightBitUpdate::numel() const { return numel_of(tensors); }

}  // namespace llmtrain::kernels
