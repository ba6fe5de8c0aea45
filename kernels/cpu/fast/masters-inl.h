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

/// As round_stochastically() does.
HWY_INLINE void round_stochastically(V x, const std::uint32_t* words, bf16* copy) {
  const Word word;
  const hn::RebindToSigned<F> number;
  const auto bits = hn::BitCast(word, x);
  const auto draw = hn::ShiftRight<16>(hn::LoadU(word, words));
  const auto down = hn::ShiftRight<16>(bits);
  const auto near = hn::ShiftRight<16>(hn::Add(bits, draw));
  const auto infinite = [&](auto half) HWY_ATTR {
    return hn::Eq(hn::And(half, hn::Set(word, 0x7fffu)), hn::Set(word, 0x7f80u));
  };
  const auto overflows = hn::AndNot(infinite(down), infinite(near));
  const auto is_nan = hn::RebindMask(word, hn::IsNaN(x));
  const auto quiet = hn::Or(down, hn::Set(word, 0x40u));
  const auto rounded = hn::IfThenElse(is_nan, quiet, hn::IfThenElse(overflows, down, near));
  hn::StoreU(hn::DemoteTo(Half(), hn::BitCast(number, rounded)), Half(),
             reinterpret_cast<std::uint16_t*>(copy));
}

/// The words of a pass, run by run of logically adjacent elements.
inline void rounding_words(const StochasticRounding& rounding, std::uint64_t update,
                           const Segment& at, std::uint32_t* words) {
  HWY_ALIGN std::uint64_t pairs[philox_pairs(kPass)];
  for (std::int64_t done = 0; done < at.count;) {
    const std::int64_t element = at.col + done;
    const std::int64_t run =
        std::min(at.count - done, rounding.adjacent(element));
    const std::uint64_t index = rounding.index(element);
    const auto skip = static_cast<std::int64_t>(index % 4);
    philox_words(rounding.key, update, index / 4, pairs, skip + run);
    std::memcpy(words + done, reinterpret_cast<const unsigned char*>(pairs) + 4 * skip,
                static_cast<std::size_t>(run) * sizeof *words);
    done += run;
  }
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
    rounding_words(to_.rounding, update_, at_, words);
    for_vectors(at_.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      if constexpr (std::is_same_v<decltype(lanes), Full>) {
        round_stochastically(load(data_ + i), words + i, copy + i);
      } else {
        for (std::int64_t k = i; k < at_.count; ++k) {
          copy[k] = llmtrain::round_stochastically(data_[k], words[k]);
        }
      }
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
