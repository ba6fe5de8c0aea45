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
/// rounded up to a whole vector.
#if HWY_TARGET == HWY_SCALAR
inline void philox_words(PhiloxKey key, std::uint64_t step, std::uint64_t block,
                         std::uint64_t* pairs, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 4, ++block) {
    const PhiloxWords words = philox_block(key, step, 4 * block);
    std::memcpy(pairs + i / 2, words.data(), sizeof words);
  }
}
#else
inline void philox_words(PhiloxKey key, std::uint64_t step, std::uint64_t block,
                         std::uint64_t* pairs, std::int64_t count) {
  // 32-bit words in the lower halves of 64-bit lanes, so that MulEven gives whole products; it
  // ignores the upper halves, so what gathers there is removed at the end only.
  const hn::ScalableTag<std::uint64_t> d;
  const hn::RepartitionToNarrow<decltype(d)> d32;
  using W = hn::Vec<decltype(d)>;
  const auto multiply = [d32](W a, W b) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  };
  const W low = hn::Set(d, 0xffffffffu);
  const W m0 = hn::Set(d, 0xD2511F53u);
  const W m1 = hn::Set(d, 0xCD9E8D57u);
  const auto blocks_per_vector = static_cast<std::int64_t>(hn::Lanes(d));
  const W advance = hn::Set(d, static_cast<std::uint64_t>(blocks_per_vector));
  W counter = hn::Iota(d, block);
  for (std::int64_t i = 0; i < count; i += 4 * blocks_per_vector) {
    W c0 = counter;
    W c1 = hn::ShiftRight<32>(counter);
    W c2 = hn::Set(d, step & 0xffffffffu);
    W c3 = hn::Set(d, step >> 32);
    PhiloxKey k = key;
    for (int round = 0; round < 10; ++round) {
      const W p0 = multiply(c0, m0);
      const W p1 = multiply(c2, m1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(d, std::uint64_t{k.k0}));
      c1 = p1;
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(d, std::uint64_t{k.k1}));
      c3 = p0;
      k.k0 += 0x9E3779B9u;
      k.k1 += 0xBB67AE85u;
    }
    hn::StoreInterleaved2(hn::Or(hn::And(c0, low), hn::ShiftLeft<32>(c1)),
                          hn::Or(hn::And(c2, low), hn::ShiftLeft<32>(c3)), d, pairs + i / 2);
    counter = hn::Add(counter, advance);
  }
}
#endif

/// Pairs that philox_words() may write for `count` words.
constexpr std::int64_t philox_pairs(std::int64_t count) { return count / 2 + 2 + 4 * kLanes; }

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
