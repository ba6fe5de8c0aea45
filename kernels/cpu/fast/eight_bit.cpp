#include "kernels/eight_bit.hpp"

#include <array>
#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/eight_bit.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/code_bins.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/rows.hpp"

// Loops that are plain arithmetic the compiler turns into vectors (as in rule_update.cpp); looking
// things up is done one by one, in tables that stay in the innermost cache.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

static_assert(kPass % kDynamicBlock == 0);

/// A state of one block.
struct CodedBlock {
  const DynamicMap& map;
  const CodeBins& bins;
  std::uint8_t* codes;
  float* scale;

  HWY_INLINE void values(std::int64_t count, float* HWY_RESTRICT to) const {
    const float times = *scale;
    for (std::int64_t i = 0; i < count; ++i) to[i] = map.values[codes[i]];
    for (std::int64_t i = 0; i < count; ++i) to[i] *= times;
  }
  /// Overwrites `from`.
  HWY_INLINE void code(std::int64_t count, float* HWY_RESTRICT from) const {
    V most = constant(0);
    for_vectors(count, [&](std::int64_t i, auto lanes)
                           HWY_ATTR { most = hn::Max(most, hn::Abs(load(from + i, lanes))); });
    const DynamicScale block(hn::GetLane(hn::MaxOfLanes(F(), most)), count == kDynamicBlock);
    *scale = block.scale;
    HWY_ALIGN std::int32_t bin[kDynamicBlock];
    if (block.whole) {
      for (std::int64_t i = 0; i < kDynamicBlock; ++i) from[i] = block.scaled(from[i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) from[i] = block.scaled(from[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) bin[i] = CodeBins::bin_of(from[i]);
    const float* const bounds = map.bounds.data();
    for (std::int64_t i = 0; i < count; ++i) {
      const int code = bins.first[static_cast<std::size_t>(bin[i])];
      codes[i] = static_cast<std::uint8_t>(code + (bounds[code] < from[i] ? 1 : 0));
    }
  }
};

template <class Rule>
void update_block(const RuleInStep<Rule, float>& rule, std::int64_t count,
                  float* HWY_RESTRICT parameter, const float* HWY_RESTRICT gradient,
                  const std::array<CodedBlock, kStatesOf<Rule>>& coded) {
  constexpr auto kStates = static_cast<std::size_t>(kStatesOf<Rule>);
  HWY_ALIGN float values[kStates][kDynamicBlock];
  for (std::size_t k = 0; k < kStates; ++k) coded[k].values(count, values[k]);
  for (std::int64_t i = 0; i < count; ++i) {
    float states[kStates];
    for (std::size_t k = 0; k < kStates; ++k) states[k] = values[k][i];
    parameter[i] = rule.apply(parameter[i], gradient[i], states);
    for (std::size_t k = 0; k < kStates; ++k) values[k][i] = states[k];
  }
  for (std::size_t k = 0; k < kStates; ++k) coded[k].code(count, values[k]);
}

template <class Rule, std::size_t... k>
void update_pass(const EightBitTensors& of, const RuleInStep<Rule, float>& rule, const Segment& at,
                 std::index_sequence<k...>) {
  Masters masters(of.to, rule.update, at);
  const float* gradient = at.of<float>(of.to.gradient);
  for (std::int64_t i = 0; i < at.count; i += kDynamicBlock) {
    const std::int64_t block = (at.col + i) / kDynamicBlock;
    update_block<Rule>(
        rule, std::min(kDynamicBlock, at.count - i), masters.data() + i, gradient + i,
        {CodedBlock{dynamic_map_of(k), code_bins_of(k), at.of<std::uint8_t>(of.codes[k]) + i,
                    of.scales[k].template as<float>() + block}...});
  }
  masters.write();
}

void eight_bit_update(const EightBitUpdate& op, const EightBitTensors& of, std::int64_t begin,
                      std::int64_t end) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  std::visit(
      [&]<class Rule>(const Rule& rule) HWY_ATTR {
        const RuleInStep<Rule, float> in_step(rule, op.decay, of.lr_scale, of.weight_decay,
                                              decision);
        for_passes(begin, end, [&](const Segment& at) HWY_ATTR {
          update_pass<Rule>(of, in_step, at, std::make_index_sequence<kStatesOf<Rule>>());
        });
      },
      op.rule);
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(eight_bit_update);

namespace {

void run_eight_bit_update(const KernelCtx& ctx, const EightBitUpdate& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  for_chunks(ctx.threads, op.table, only_row<EightBitUpdate>(op.table, op.tensors),
             [&](std::size_t row, std::int64_t, std::int64_t begin, std::int64_t end) {
               HWY_DYNAMIC_DISPATCH(eight_bit_update)(op, op.tensors[row], begin, end);
             });
}

}  // namespace

void add_eight_bit_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<EightBitUpdate, run_eight_bit_update>());
}

}  // namespace llmtrain::kernels::fast
#endif
