#include "kernels/eight_bit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/eight_bit.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/code_lines.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/rows.hpp"

// Codes are made by arithmetic in vectors, with the search of the reference for vectors that have
// a number beside a bound. Updates use no fused multiply-add, for the bits of the reference.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

static_assert(kPass % kDynamicBlock == 0);

using Number = hn::RebindToSigned<F>;
using N = hn::Vec<Number>;
using Byte = hn::Rebind<std::uint8_t, Number>;

/// a where it is greater, else b (also where a is NaN).
HWY_INLINE V greater(V a, V b) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Max(a, b);
#else
  return hn::IfThenElse(hn::Gt(a, b), a, b);
#endif
}

/// Of each lane the number of the table that its index says, modulo CodeLines::kSteps.
HWY_INLINE V look_up(const CodeLines::Table& table, N index) {
  constexpr bool kTakesAnyIndex = HWY_ARCH_X86 && kLanes >= 8 && !HWY_IS_DEBUG_BUILD;
  constexpr auto kLast = static_cast<std::int32_t>((kLanes > 8 ? kLanes : 8) - 1);
  if constexpr (!kTakesAnyIndex) index = hn::And(index, hn::Set(Number(), kLast));
  if constexpr (kLanes >= 8) {
    return hn::TableLookupLanes(hn::LoadU(F(), table.data()), hn::IndicesFromVec(F(), index));
  } else {
    return hn::GatherIndex(F(), table.data(), index);
  }
}
static_assert(kLanes <= std::tuple_size_v<CodeLines::Table>);

/// Codes of a vector, and how far from a whole number, in CodeLines's digits, what they are
/// rounded from is: less than 2 kNear says that they may be wrong.
struct Coded {
  N codes, digits;
};

template <bool is_signed>
class Coder {
  static constexpr const CodeLines& kLines = kCodeLines[is_signed ? 0 : 1];

 public:
  HWY_INLINE Coded operator()(V x) const {
    const Number number;
    V y = greater(x, constant(is_signed ? -1 : CodeLines::kLeast));
    [[maybe_unused]] N negative = hn::Zero(number);
    if constexpr (is_signed) {
      // On a bound the lower code, of a negative number that farther from zero.
      const N bits = hn::BitCast(number, y);
      negative = hn::ShiftRight<31>(bits);
      const N magnitude = hn::Sub(hn::And(bits, hn::Set(number, 0x7fffffff)), negative);
      y = hn::Max(hn::BitCast(F(), magnitude), constant(CodeLines::kLeast));
    }
    const N bits = hn::BitCast(number, y);
    const N guess = hn::ShiftRight<25>(hn::Add(bits, hn::ShiftRight<2>(bits)));
    const N is_above =
        hn::VecFromMask(number, hn::RebindMask(number, hn::Gt(y, look_up(kLines.above, guess))));
    const N step = hn::Sub(guess, is_above);
    const V q = hn::Min(hn::MulAdd(y, look_up(kLines.slope, step), constant(CodeLines::kLow)),
                        constant(CodeLines::kHigh));
    constexpr int kExponent = 127 + kLines.first_exponent - CodeLines::kGuessOfZero;
    const N first = hn::Add(hn::ShiftLeft<23>(step), hn::Set(number, kExponent * (1 << 23)));
    const N place =
        hn::BitCast(number, hn::MulAdd(q, hn::BitCast(F(), first), constant(CodeLines::kBase)));
    N n = hn::Sub(hn::ShiftRight<CodeLines::kDigits>(place),
                  hn::Set(number, CodeLines::kNumberOfBase));
    if constexpr (is_signed) {
      const auto below_zero = hn::RebindMask(number, hn::Lt(x, constant(0)));
      n = hn::Max(n, hn::IfThenElseZero(below_zero, hn::Set(number, 1)));  // which is no zero
      n = hn::Sub(hn::Xor(n, negative), negative);
    }
    return {hn::Add(n, hn::Set(number, kLines.zero)),
            hn::And(place, hn::Set(number, CodeLines::kFraction))};
  }
};

/// Point t of [0, 1] on the way from 0.1 to 1, as detail::linear_point has it.
[[maybe_unused]] HWY_INLINE V point(V t) {
  const V first = hn::IfThenElse(hn::Lt(t, constant(0.5)), constant(CodePoints::kFirst),
                                 constant(CodePoints::kFirstOfUpper));
  return hn::MulAdd(t, constant(CodePoints::kLength), first);
}

#if HWY_TARGET == HWY_AVX2
/// Of each of eight bytes the number of a table. A gather takes half as long again, and so does
/// arithmetic: the units of vectors have enough to do, those that load numbers have not.
HWY_INLINE V load_each(const float* table, const std::uint8_t* bytes) {
  const auto number = [&](int k) HWY_ATTR { return _mm_load_ss(table + bytes[k]); };
  const auto four = [&](int k) HWY_ATTR {
    const __m128 two = _mm_insert_ps(number(k), number(k + 1), 1 << 4);
    return _mm_insert_ps(_mm_insert_ps(two, number(k + 2), 2 << 4), number(k + 3), 3 << 4);
  };
  return V{_mm256_insertf128_ps(_mm256_castps128_ps256(four(0)), four(4), 1)};
}
#endif

/// What codes stand for where the scale is 1; in wide vectors by the map's own construction, which
/// takes less time than a gather of its values.
template <bool is_signed>
HWY_INLINE V values_of(const std::uint8_t* codes) {
  constexpr const DynamicMap& map = is_signed ? kSignedDynamicMap : kUnsignedDynamicMap;
#if HWY_TARGET == HWY_AVX2
  return load_each(map.values.data(), codes);
#else
  const Number number;
  const N code = hn::PromoteTo(number, hn::LoadU(Byte(), codes));
  constexpr bool kLooksUpInVector = HWY_NATIVE_FMA && kLanes >= 8;
  if constexpr (!kLooksUpInVector) {
    return hn::GatherIndex(F(), map.values.data(), code);
  } else {
    constexpr const CodePoints& points = kCodePoints[is_signed ? 0 : 1];
    const V place = hn::ConvertTo(F(), hn::Sub(code, hn::Set(number, points.zero)));
    const N bits = hn::BitCast(number, is_signed ? hn::Abs(place) : place);
    const N exponent = hn::And(bits, hn::Set(number, 0x7f800000));
    const V part = hn::BitCast(F(), hn::Sub(hn::Set(number, 254 << 23), exponent));
    const V begin = hn::MulSub(hn::BitCast(F(), bits), part, constant(1));
    const V sum = hn::Add(point(begin), point(hn::Add(begin, part)));
    const V value = hn::Mul(sum, look_up(points.half_powers, hn::ShiftRight<23>(bits)));
    if constexpr (is_signed) {
      return hn::Mul(value, hn::Max(hn::Min(place, constant(1)), constant(-1)));
    } else {
      const auto is_one = hn::RebindMask(F(), hn::Eq(code, hn::Set(number, kDynamicCodes - 1)));
      return hn::IfThenElse(is_one, constant(1), value);
    }
  }
#endif
}

/// Vectors whose codes are stored at a time.
constexpr int kGroup = 4;

HWY_INLINE void store_codes(const N* codes, std::uint8_t* to) {
#if HWY_TARGET == HWY_AVX2
  // Packing goes by halves of a vector.
  const hn::Repartition<std::int16_t, Number> half;
  const auto first = hn::ReorderDemote2To(half, codes[0], codes[1]);
  const auto second = hn::ReorderDemote2To(half, codes[2], codes[3]);
  const __m256i bytes = _mm256_packus_epi16(first.raw, second.raw);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
#else
  for (int k = 0; k < kGroup; ++k) {
    hn::StoreU(hn::DemoteTo(Byte(), codes[k]), Byte(), to + k * kLanes);
  }
#endif
}

/// A state of one block.
struct CodedBlock {
  std::uint8_t* codes;
  float* scale;
};

/// Codes of those of a group of vectors that are beside a bound.
template <bool is_signed>
HWY_NOINLINE void search_group(const float* values, float inverse, std::uint8_t* codes) {
  constexpr const DynamicMap& map = is_signed ? kSignedDynamicMap : kUnsignedDynamicMap;
  const Coder<is_signed> coder;
  for (std::int64_t i = 0; i < kGroup * kLanes; i += kLanes) {
    const N digits = coder(hn::Mul(load(values + i), constant(inverse))).digits;
    std::int32_t of_lanes[kLanes];
    hn::StoreU(digits, Number(), of_lanes);
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      if (of_lanes[lane] >= 2 * CodeLines::kNear) continue;
      const float x = values[i + lane] * inverse;
      codes[i + lane] = static_cast<std::uint8_t>(map.code_of(x > -1.0f ? x : -1.0f));
    }
  }
}

/// Codes of a block; beside(i) is done for the vector at each i on the way.
template <bool is_signed, class Beside>
HWY_INLINE void encode(const float* HWY_RESTRICT values, float inverse, std::uint8_t* codes,
                       const Beside& beside) {
  const Coder<is_signed> coder;
  const Number number;
  const V times = constant(inverse);
  for (std::int64_t i = 0; i < kDynamicBlock; i += kGroup * kLanes) {
    N of_group[kGroup];
    N digits = hn::Set(number, CodeLines::kFraction);
    for (int k = 0; k < kGroup; ++k) {
      beside(i + k * kLanes);
      const Coded coded = coder(hn::Mul(load(values + i + k * kLanes), times));
      of_group[k] = coded.codes;
      digits = hn::Min(digits, coded.digits);
    }
    store_codes(of_group, codes + i);
    const auto is_near = hn::Lt(digits, hn::Set(number, 2 * CodeLines::kNear));
    if (HWY_UNLIKELY(!hn::AllFalse(number, is_near)))
      search_group<is_signed>(values + i, inverse, codes + i);
  }
}

/// Rules that step by new states alone do so behind the loop that makes these: between what codes
/// say and the end of a step there are so many operations that a processor looks ahead of too few
/// elements to be busy. They step while the first state becomes codes, which leaves the unit for
/// quotients and roots free.
template <class Rule>
inline constexpr bool kStepsBehindStates = std::is_same_v<Rule, rules::Adam>;

HWY_INLINE void advance(const rules::Adam::In<float>& in, V g, V* states) {
  states[0] =
      hn::Add(hn::Mul(constant(in.beta1), states[0]), hn::Mul(constant(in.one_minus_beta1), g));
  states[1] = hn::Add(hn::Mul(constant(in.beta2), states[1]),
                      hn::Mul(hn::Mul(constant(in.one_minus_beta2), g), g));
}

HWY_INLINE V along(const rules::Adam::In<float>& in, V m, V v) {
  return hn::Div(
      hn::Mul(constant(in.step_size), m),
      hn::Add(hn::Div(hn::Sqrt(v), constant(in.sqrt_bias_correction2)), constant(in.eps)));
}

HWY_INLINE V step(const rules::Lion::In<float>& in, V g, V* states) {
  const V zero = hn::Zero(F());
  const V ahead =
      hn::Add(hn::Mul(constant(in.beta1), states[0]), hn::Mul(constant(in.one_minus_beta1), g));
  states[0] =
      hn::Add(hn::Mul(constant(in.beta2), states[0]), hn::Mul(constant(in.one_minus_beta2), g));
  const V down = hn::IfThenElseZero(hn::Lt(ahead, zero), constant(-in.lr));
  return hn::IfThenElse(hn::Gt(ahead, zero), constant(in.lr), down);
}

template <class Rule>
HWY_INLINE V gradient_in_step(const RuleInStep<Rule, float>& rule, V p, V gradient) {
  return hn::Add(hn::Mul(gradient, constant(rule.grad_scale)),
                 hn::Mul(constant(rule.decay_in_gradient), p));
}

template <class Rule>
HWY_INLINE V moved(const RuleInStep<Rule, float>& rule, V p, V step) {
  return hn::Mul(hn::Sub(hn::Mul(constant(rule.kept_before), p), step), constant(rule.kept_after));
}

/// What the block after the next reads is on its way while this one is coded.
template <class T>
HWY_INLINE void prefetch_block(const T* block) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < kDynamicBlock; i += kLine) {
    __builtin_prefetch(block + 2 * kDynamicBlock + i);
  }
}

template <class Rule>
void update_block(const RuleInStep<Rule, float> rule, std::int64_t count,
                  float* HWY_RESTRICT parameter, const float* HWY_RESTRICT gradient,
                  const std::array<CodedBlock, kStatesOf<Rule>>& coded) {
  constexpr auto kStates = static_cast<std::size_t>(kStatesOf<Rule>);
  HWY_ALIGN float values[kStates][kDynamicBlock];
  V most[kStates], scale[kStates];
  for (std::size_t k = 0; k < kStates; ++k) {
    most[k] = constant(0);
    scale[k] = constant(*coded[k].scale);
  }
  for (std::int64_t i = 0; i < kDynamicBlock; i += kLanes) {
    V states[kStates];
    states[0] = hn::Mul(values_of<true>(coded[0].codes + i), scale[0]);
    if constexpr (kStates > 1) {
      states[1] = hn::Mul(values_of<false>(coded[1].codes + i), scale[1]);
    }
    const V p = load(parameter + i), g = gradient_in_step(rule, p, load(gradient + i));
    if constexpr (kStepsBehindStates<Rule>) {
      advance(rule.rule, g, states);
    } else {
      store(moved(rule, p, step(rule.rule, g, states)), parameter + i);
    }
    for (std::size_t k = 0; k < kStates; ++k) {
      store(states[k], values[k] + i);
      most[k] = greater(k == 0 ? hn::Abs(states[k]) : states[k], most[k]);
    }
  }
  const auto step_behind = [&](std::int64_t i) HWY_ATTR {
    if constexpr (kStepsBehindStates<Rule>) {
      const V by = along(rule.rule, load(values[0] + i), load(values[1] + i));
      store(moved(rule, load(parameter + i), by), parameter + i);
    }
  };
  const auto nothing = [](std::int64_t) {};
  for (std::size_t k = 0; k < kStates; ++k) {
    const DynamicScale block(hn::GetLane(hn::MaxOfLanes(F(), most[k])), count == kDynamicBlock);
    *coded[k].scale = block.scale;
    float inverse = block.inverse;
    if (!block.whole) {
      for (std::int64_t i = 0; k == 0 && i < kDynamicBlock; i += kLanes) step_behind(i);
      for (float& x : values[k]) x /= block.scale;
      inverse = 1;
    }
    if (k > 0) encode<false>(values[k], inverse, coded[k].codes, nothing);
    if (k == 0 && block.whole) encode<true>(values[k], inverse, coded[k].codes, step_behind);
    if (k == 0 && !block.whole) encode<true>(values[k], inverse, coded[k].codes, nothing);
  }
}

/// The last block of a tensor, filled up with zeros.
template <class Rule>
void update_short_block(const RuleInStep<Rule, float>& rule, std::int64_t count, float* parameter,
                        const float* gradient,
                        const std::array<CodedBlock, kStatesOf<Rule>>& coded) {
  constexpr auto kStates = static_cast<std::size_t>(kStatesOf<Rule>);
  float p[kDynamicBlock] = {}, g[kDynamicBlock] = {};
  std::uint8_t codes[kStates][kDynamicBlock];
  std::array<CodedBlock, kStatesOf<Rule>> filled = coded;
  std::copy_n(parameter, count, p);
  std::copy_n(gradient, count, g);
  for (std::size_t k = 0; k < kStates; ++k) {
    std::fill_n(codes[k], kDynamicBlock, static_cast<std::uint8_t>(dynamic_map_of(k).code_of(0)));
    std::copy_n(coded[k].codes, count, codes[k]);
    filled[k].codes = codes[k];
  }
  update_block<Rule>(rule, count, p, g, filled);
  std::copy_n(p, count, parameter);
  for (std::size_t k = 0; k < kStates; ++k) std::copy_n(codes[k], count, coded[k].codes);
}

template <class Rule, std::size_t... k>
void update_pass(const EightBitTensors& of, const RuleInStep<Rule, float>& rule, const Segment& at,
                 std::index_sequence<k...>) {
  Masters masters(of.to, rule.update, at);
  const float* gradient = at.of<float>(of.to.gradient);
  for (std::int64_t i = 0; i < at.count; i += kDynamicBlock) {
    const std::int64_t block = (at.col + i) / kDynamicBlock;
    const std::int64_t count = std::min(kDynamicBlock, at.count - i);
    prefetch_block(masters.data() + i);
    prefetch_block(gradient + i);
    (prefetch_block(at.of<std::uint8_t>(of.codes[k]) + i), ...);
    const std::array<CodedBlock, sizeof...(k)> coded = {CodedBlock{
        at.of<std::uint8_t>(of.codes[k]) + i, of.scales[k].template as<float>() + block}...};
    if (count == kDynamicBlock) {
      update_block<Rule>(rule, count, masters.data() + i, gradient + i, coded);
    } else {
      update_short_block<Rule>(rule, count, masters.data() + i, gradient + i, coded);
    }
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
