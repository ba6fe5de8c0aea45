#pragma once
/// Updates whose states are 8 bits an element in blocks with a scale each (dynamic_map.hpp).

#include <array>
#include <variant>
#include <vector>

#include "kernels/dynamic_map.hpp"
#include "kernels/optimizer.hpp"

namespace llmtrain::kernels {

/// Rules of which the first state has a sign and a second has none.
using EightBitRule = std::variant<rules::Adam, rules::Lion>;

inline constexpr int kMaxEightBitStates = 2;

/// Names of the states of a rule, in its order.
inline std::span<const std::string_view> states_of(const EightBitRule& rule) {
  return std::visit(
      [](const auto& r) {
        return std::span<const std::string_view>(r.kStates.data(), r.kStates.size());
      },
      rule);
}

constexpr const DynamicMap& dynamic_map_of(int state) {
  return state == 0 ? kSignedDynamicMap : kUnsignedDynamicMap;
}

/// One parameter of an EightBitUpdate, with as many states as the rule has: `codes` uint8 [numel],
/// `scales` FP32 [dynamic_blocks(numel)].
struct EightBitTensors {
  UpdateOperands to;
  std::array<View, kMaxEightBitStates> codes, scales;
  double lr_scale = 1, weight_decay = 0;
};

/// An update by a rule, with lr = lr_scale times the decision's. A block of kDynamicBlock elements
/// of a parameter at a time: states are what codes and scales say; the rule steps by their new
/// values; these, rounded to FP32, become codes and scales again. Where the decision does not
/// apply, nothing is written. One launch for a list of parameters, which agree in dtypes and in the
/// form of their masters.
struct EightBitUpdate {
  static constexpr std::string_view name = "eight_bit_update";
  /// A row of the table.
  struct Row {
    ListPlace place;
    void *parameter, *gradient, *compute_copy, *remainder;
    void *codes[kMaxEightBitStates], *scales[kMaxEightBitStates];
    double lr_scale, weight_decay;
    StochasticRounding rounding;
  };
  static std::vector<Row> rows(std::span<const EightBitTensors> tensors);

  std::span<const EightBitTensors> tensors;
  /// rows(tensors) in the device's memory, uint8; may be absent for a list of one.
  View table;
  View decision;
  EightBitRule rule;
  WeightDecay decay = WeightDecay::before_step;
  void check() const;
  Cost cost() const;
  std::int64_t numel() const;
  DType dtype() const { return tensors.front().to.gradient.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};
static_assert(kListChunk % kDynamicBlock == 0);

}  // namespace llmtrain::kernels
