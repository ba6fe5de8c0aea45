// Philox in vectors. Included once per instruction set.
#if defined(LLMTRAIN_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_PHILOX_INL_H
#undef LLMTRAIN_PHILOX_INL_H
#else
#define LLMTRAIN_PHILOX_INL_H
#endif

#include <cstring>

#include "kernels/cpu/fast/vector-inl.h"
#include "lib/base/philox.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// The words of Philox blocks `block` and following, two to a pair: at least `count` of them,
/// rounded up to two whole vectors.
#if HWY_TARGET == HWY_SCALAR
inline void philox_words(PhiloxKey key, std::uint64_t step, std::uint64_t block,
                         std::uint64_t* pairs, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 4, ++block) {
    const PhiloxWords words = philox_block(key, step, 4 * block);
    std::memcpy(pairs + i / 2, words.data(), sizeof words);
  }
}
#else
/// A block per lane: 32-bit words in the lower halves of 64-bit lanes, so that MulEven gives whole
/// products; it ignores the upper halves, so what gathers there is removed at the end only.
struct PhiloxBlocks {
  using D = hn::ScalableTag<std::uint64_t>;
  using W = hn::Vec<D>;
  W c0, c1, c2, c3;

  HWY_INLINE PhiloxBlocks(W counter, std::uint64_t step)
      : c0(counter),
        c1(hn::ShiftRight<32>(counter)),
        c2(hn::Set(D(), step & 0xffffffffu)),
        c3(hn::Set(D(), step >> 32)) {}
  HWY_INLINE static W multiply(W a, std::uint64_t b) {
    const hn::RepartitionToNarrow<D> d32;
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, hn::Set(D(), b)));
  }
  HWY_INLINE void round(W k0, W k1) {
    const W p0 = multiply(c0, 0xD2511F53u);
    const W p1 = multiply(c2, 0xCD9E8D57u);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), k0);
    c1 = p1;
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), k1);
    c3 = p0;
  }
  HWY_INLINE void store(std::uint64_t* pairs) const {
    const W low = hn::Set(D(), 0xffffffffu);
    hn::StoreInterleaved2(hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1)),
                          hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3)), D(), pairs);
  }
};

inline void philox_words(PhiloxKey key, std::uint64_t step, std::uint64_t block,
                         std::uint64_t* pairs, std::int64_t count) {
  // Two vectors of blocks, of which one works while the other waits for its products.
  const hn::ScalableTag<std::uint64_t> d;
  using W = hn::Vec<decltype(d)>;
  const auto blocks_per_vector = static_cast<std::int64_t>(hn::Lanes(d));
  const W advance = hn::Set(d, static_cast<std::uint64_t>(blocks_per_vector));
  W counter = hn::Iota(d, block);
  for (std::int64_t i = 0; i < count; i += 8 * blocks_per_vector) {
    PhiloxBlocks one(counter, step);
    counter = hn::Add(counter, advance);
    PhiloxBlocks two(counter, step);
    counter = hn::Add(counter, advance);
    PhiloxKey k = key;
    for (int round = 0; round < 10; ++round) {
      const W k0 = hn::Set(d, std::uint64_t{k.k0}), k1 = hn::Set(d, std::uint64_t{k.k1});
      one.round(k0, k1);
      two.round(k0, k1);
      k = next_round_key(k);
    }
    one.store(pairs + i / 2);
    two.store(pairs + i / 2 + 2 * blocks_per_vector);
  }
}
#endif

/// Pairs that philox_words() may write for `count` words.
constexpr std::int64_t philox_pairs(std::int64_t count) { return count / 2 + 2 + 4 * kLanes; }

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
