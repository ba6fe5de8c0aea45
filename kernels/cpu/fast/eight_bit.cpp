#include "kernels/eight_bit.hpp"

#include <array>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/eight_bit.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/code_bins.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/rows.hpp"

// The rule is a loop of plain arithmetic that the compiler turns into vectors (as in
// rule_update.cpp); codes are read and made in vectors, by tables that stay in the innermost cache.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

static_assert(kPass % kDynamicBlock == 0);

using Number = hn::RebindToSigned<F>;
using Byte = hn::Rebind<std::uint8_t, Number>;

HWY_INLINE hn::Vec<Number> load_codes(const std::uint8_t* p, Full) {
  return hn::PromoteTo(Number(), hn::LoadU(Byte(), p));
}
HWY_INLINE hn::Vec<Number> load_codes(const std::uint8_t* p, First some) {
  std::uint8_t row[kLanes] = {};
  std::memcpy(row, p, static_cast<std::size_t>(some.count));
  return load_codes(row, Full{});
}
HWY_INLINE void store_codes(hn::Vec<Number> codes, std::uint8_t* p, Full) {
  hn::StoreU(hn::DemoteTo(Byte(), codes), Byte(), p);
}
HWY_INLINE void store_codes(hn::Vec<Number> codes, std::uint8_t* p, First some) {
  std::uint8_t row[kLanes];
  store_codes(codes, row, Full{});
  std::memcpy(p, row, static_cast<std::size_t>(some.count));
}

/// As DynamicScale::scaled() does.
HWY_INLINE V scaled(const DynamicScale& block, V x) {
  const V most = constant(1), least = constant(-1);
  const V y = block.whole ? hn::Mul(x, constant(block.inverse)) : hn::Div(x, constant(block.scale));
  const V raised = hn::IfThenElse(hn::Gt(y, least), y, least);
  return hn::IfThenElse(hn::Lt(raised, most), raised, most);
}

/// As DynamicMap::code_of() does, of numbers in [-1, 1].
HWY_INLINE hn::Vec<Number> code_of(const CodeBins& bins, V x) {
  const Number number;
  const auto zero = hn::Zero(number);
  const auto bits = hn::BitCast(number, x);
  const auto magnitude = hn::And(bits, hn::Set(number, 0x7fffffff));
  const auto key =
      hn::Sub(hn::ShiftRight<CodeBins::kShift>(magnitude), hn::Set(number, CodeBins::kFirstKey));
  const auto of_sign = hn::IfThenElseZero(hn::Lt(bits, zero), hn::Set(number, CodeBins::kOfSign));
  const auto bin = hn::Add(hn::Max(key, zero), of_sign);
  const auto first = hn::GatherIndex(number, bins.first.data(), bin);
  const V bound = hn::GatherIndex(F(), bins.bounds.data(), bin);
  return hn::Sub(first, hn::VecFromMask(number, hn::RebindMask(number, hn::Lt(bound, x))));
}

/// A state of one block.
struct CodedBlock {
  const DynamicMap& map;
  const CodeBins& bins;
  std::uint8_t* codes;
  float* scale;

  HWY_INLINE void values(std::int64_t count, float* HWY_RESTRICT to) const {
    const V times = constant(*scale);
    for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      const V value = hn::GatherIndex(F(), map.values.data(), load_codes(codes + i, lanes));
      store(hn::Mul(value, times), to + i, lanes);
    });
  }
  HWY_INLINE void code(std::int64_t count, const float* HWY_RESTRICT from) const {
    V most = constant(0);
    for_vectors(count, [&](std::int64_t i, auto lanes)
                           HWY_ATTR { most = hn::Max(most, hn::Abs(load(from + i, lanes))); });
    const DynamicScale block(hn::GetLane(hn::MaxOfLanes(F(), most)), count == kDynamicBlock);
    *scale = block.scale;
    for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store_codes(code_of(bins, scaled(block, load(from + i, lanes))), codes + i, lanes);
    });
  }
};

/// What the block after the next reads is on its way while this one is coded.
template <class T>
HWY_INLINE void prefetch_block(const T* block) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < kDynamicBlock; i += kLine) {
    __builtin_prefetch(block + 2 * kDynamicBlock + i);
  }
}

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
    prefetch_block(masters.data() + i);
    prefetch_block(gradient + i);
    (prefetch_block(at.of<std::uint8_t>(of.codes[k]) + i), ...);
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
