// The masters of an update in vectors, in whichever form they are. Included once per instruction
// set.
#if defined(LLMTRAIN_MASTERS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_MASTERS_INL_H
#undef LLMTRAIN_MASTERS_INL_H
#else
#define LLMTRAIN_MASTERS_INL_H
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/fast/philox-inl.h"
#include "kernels/cpu/fast/segments.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/optimizer.hpp"
#include "lib/tensor/split_master.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

using Word = hn::RebindToUnsigned<F>;
using Half = hn::Rebind<std::uint16_t, F>;

/// As split_master() does, of one master per lane.
HWY_INLINE void split(V master, bf16* copy, std::uint16_t* remainder) {
  const Word word;
  const hn::RebindToSigned<F> number;
  const auto bits = hn::BitCast(word, master);
  const auto is_nan = hn::RebindMask(word, hn::IsNaN(master));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Set(word, 0x8000u)));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(word, 0x40u));
  const auto low = hn::IfThenZeroElse(is_nan, hn::And(bits, hn::Set(word, 0xffffu)));
  const auto narrow = [&](auto x) HWY_ATTR { return hn::DemoteTo(Half(), hn::BitCast(number, x)); };
  hn::StoreU(narrow(hn::IfThenElse(is_nan, quiet, rounded)), Half(),
             reinterpret_cast<std::uint16_t*>(copy));
  if (remainder != nullptr) hn::StoreU(narrow(low), Half(), remainder);
}

/// As join_master() does.
HWY_INLINE V join(const bf16* copy, const std::uint16_t* remainder) {
  const Word word;
  const auto low = hn::PromoteTo(word, hn::LoadU(Half(), remainder));
  const auto rounded =
      hn::PromoteTo(word, hn::LoadU(Half(), reinterpret_cast<const std::uint16_t*>(copy)));
  const auto high = hn::Sub(rounded, hn::ShiftRight<15>(low));
  return hn::BitCast(F(), hn::Or(hn::ShiftLeft<16>(high), low));
}

/// What rounds one number per lane: the upper half of a word, or a half.
HWY_INLINE hn::Vec<Word> load_draws(const std::uint32_t* words) {
  return hn::ShiftRight<16>(hn::LoadU(Word(), words));
}
HWY_INLINE hn::Vec<Word> load_draws(const std::uint16_t* halves) {
  return hn::PromoteTo(Word(), hn::LoadU(Half(), halves));
}

/// As round_by_half() does: what is about to overflow, or has no number, is cut off.
template <class Draw>
HWY_INLINE void store_by_chance(V x, const Draw* draws, bf16* to, Full) {
  const Word word;
  const hn::RebindToSigned<F> number;
  const auto bits = hn::BitCast(number, x);
  const auto magnitude = hn::And(bits, hn::Set(number, 0x7fffffff));
  const auto is_last = hn::Gt(magnitude, hn::Set(number, 0x7f7effff));
  const auto draw = hn::BitCast(number, load_draws(draws));
  const auto quiet =
      hn::IfThenElseZero(hn::RebindMask(number, hn::IsNaN(x)), hn::Set(number, 0x400000));
  const auto near = hn::Or(hn::Add(bits, hn::IfThenZeroElse(is_last, draw)), quiet);
  const auto rounded = hn::ShiftRight<16>(hn::BitCast(word, near));
  hn::StoreU(hn::DemoteTo(Half(), hn::BitCast(number, rounded)), Half(),
             reinterpret_cast<std::uint16_t*>(to));
}
/// Draws beyond the last lane need not be any, but memory.
template <class Draw>
HWY_INLINE void store_by_chance(V x, const Draw* draws, bf16* to, First some) {
  bf16 row[kLanes];
  store_by_chance(x, draws, row, Full{});
  std::memcpy(to, row, static_cast<std::size_t>(some.count) * sizeof *to);
}

/// What load_draws() takes of `count` pairs of words: these, or halves as shared_half() has them,
/// for which there is `room`.
inline const std::uint32_t* draws_of(const std::uint64_t* pairs, std::int64_t, std::uint32_t*) {
  return reinterpret_cast<const std::uint32_t*>(pairs);
}
inline const std::uint16_t* draws_of(const std::uint64_t* pairs, std::int64_t count,
                                     std::uint16_t* room) {
  const hn::ScalableTag<std::uint16_t> d;
  const auto* halves = reinterpret_cast<const std::uint16_t*>(pairs);
  for (std::int64_t i = 0; i < 4 * count; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto half = hn::LoadU(d, halves + i);
    const auto swapped = hn::Or(hn::ShiftLeft<8>(half), hn::ShiftRight<8>(half));
    hn::StoreInterleaved2(swapped, half, d, room + 2 * i);
  }
  return room;
}

/// Draws of a pass as load_draws() takes them, run by run of logically adjacent elements.
template <class Draw>
inline void draw_for_pass(const StochasticRounding& rounding, std::uint64_t update,
                          const Segment& at, Draw* draws) {
  constexpr std::int64_t kPerWord = std::is_same_v<Draw, std::uint16_t> ? 4 : 1;
  HWY_ALIGN std::uint64_t pairs[philox_pairs(kPass)];
  Draw room[2 * kPerWord * philox_pairs(kPass / kPerWord)];
  for (std::int64_t done = 0; done < at.count;) {
    const std::int64_t element = at.col + done;
    const std::int64_t run = std::min(at.count - done, rounding.adjacent(element));
    const std::uint64_t index = rounding.index(element);
    const auto skip = static_cast<std::int64_t>(index % (4 * kPerWord));
    const std::int64_t words = (skip + run + kPerWord - 1) / kPerWord;
    philox_words(rounding.key, update, index / (4 * kPerWord), pairs, words);
    const Draw* drawn = draws_of(pairs, (words + 1) / 2, room) + skip;
    std::memcpy(draws + done, drawn, static_cast<std::size_t>(run) * sizeof *draws);
    done += run;
  }
}

/// Asks for what lies two KiB of FP32 further on in rows that are read side by side: what a
/// processor reads ahead by itself ends with each row's page. Of 128 to 2,048 elements 512 were the
/// fastest.
template <class... T>
HWY_INLINE void prefetch(std::int64_t i, const T*... rows) {
  constexpr std::int64_t kAhead = 512;
  (__builtin_prefetch(rows + i + kAhead), ...);
}

/// A state as an update has it, FP32, or bf16 that `halves` round.
template <class Lanes>
HWY_INLINE void store_state(V x, const std::uint16_t*, float* to, Lanes lanes) {
  store(x, to, lanes);
}
template <class Lanes>
HWY_INLINE void store_state(V x, const std::uint16_t* halves, bf16* to, Lanes lanes) {
  store_by_chance(x, halves, to, lanes);
}

/// The masters of a pass as floats: where they lie, or joined, and split or rounded again by
/// write().
class Masters {
 public:
  /// `update`: the number of this one.
  Masters(const UpdateOperands& to, std::uint64_t update, const Segment& at)
      : to_(to),
        update_(update),
        at_(at),
        data_(to.parameter.defined() ? at.of<float>(to.parameter) : joined_) {
    if (to.parameter.defined()) return;
    const bf16* copy = at.of<bf16>(to.compute_copy);
    if (!to.remainder.defined()) {
      for_vectors(at.count, [&](std::int64_t i, auto lanes)
                                HWY_ATTR { store(load(copy + i, lanes), joined_ + i, lanes); });
      return;
    }
    const auto* remainder = at.of<std::uint16_t>(to.remainder);
    for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      if constexpr (std::is_same_v<decltype(lanes), Full>) {
        hn::StoreU(join(copy + i, remainder + i), F(), joined_ + i);
      } else {
        for (std::int64_t k = i; k < at.count; ++k)
          joined_[k] = join_master({copy[k], remainder[k]});
      }
    });
  }

  float* data() { return data_; }

  /// The halves or the rounded copy of what was just written, hence still in the innermost cache.
  void write() const {
    if (!to_.compute_copy.defined()) return;
    if (to_.compute_copy.dtype == DType::f32) {
      std::memcpy(at_.of<float>(to_.compute_copy), data_,
                  static_cast<std::size_t>(at_.count) * sizeof(float));
      return;
    }
    if (to_.compute_copy.dtype == DType::f16) return round_to(at_.of<f16>(to_.compute_copy));
    bf16* copy = at_.of<bf16>(to_.compute_copy);
    if (to_.rounding.on) return round(copy);
    std::uint16_t* remainder =
        to_.remainder.defined() ? at_.of<std::uint16_t>(to_.remainder) : nullptr;
    for_vectors(at_.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      if constexpr (std::is_same_v<decltype(lanes), Full>) {
        split(load(data_ + i), copy + i, remainder == nullptr ? nullptr : remainder + i);
      } else {
        for (std::int64_t k = i; k < at_.count; ++k) {
          const MasterParts parts = split_master(data_[k]);
          copy[k] = parts.copy;
          if (remainder != nullptr) remainder[k] = parts.remainder;
        }
      }
    });
  }

 private:
  void round_to(f16* copy) const {
    for_vectors(at_.count, [&](std::int64_t i, auto lanes)
                               HWY_ATTR { store(load(data_ + i, lanes), copy + i, lanes); });
  }

  void round(bf16* copy) const {
    std::uint32_t words[kPass];
    draw_for_pass(to_.rounding, update_, at_, words);
    for_vectors(at_.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store_by_chance(load(data_ + i, lanes), words + i, copy + i, lanes);
    });
  }

  const UpdateOperands& to_;
  std::uint64_t update_;
  const Segment& at_;
  float* data_;
  HWY_ALIGN float joined_[kPass];
};

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
