// Dropout of attention probabilities: the words of Philox for a whole tile. Included once per
// instruction set.
#if defined(LLMTRAIN_ATTENTION_DROPOUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_ATTENTION_DROPOUT_INL_H
#undef LLMTRAIN_ATTENTION_DROPOUT_INL_H
#else
#define LLMTRAIN_ATTENTION_DROPOUT_INL_H
#endif

#include "kernels/cpu/fast/attention_tile.hpp"
#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

using U = hn::RebindToUnsigned<F>;
using Words = hn::Vec<U>;

/// Both halves of the 64-bit products of a and a constant.
HWY_INLINE void multiply(Words a, std::uint32_t constant, Words& high, Words& low) {
  const U u;
#if HWY_TARGET == HWY_SCALAR
  const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * constant;
  high = hn::Set(u, static_cast<std::uint32_t>(product >> 32));
  low = hn::Set(u, static_cast<std::uint32_t>(product));
#else
  const hn::RepartitionToWide<U> wide;
  const Words b = hn::Set(u, constant);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(u, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  high = hn::OddEven(hn::BitCast(u, odd), hn::BitCast(u, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(u, hn::ShiftLeft<32>(odd)), hn::BitCast(u, even));
#endif
}

/// philox4x32_10 of one counter per lane.
struct PhiloxLanes {
  Words word[4];
};
HWY_INLINE PhiloxLanes philox_lanes(Words block_low, Words block_high, std::uint64_t step,
                                    PhiloxKey key) {
  const U u;
  Words c0 = block_low;
  Words c1 = block_high;
  Words c2 = hn::Set(u, static_cast<std::uint32_t>(step));
  Words c3 = hn::Set(u, static_cast<std::uint32_t>(step >> 32));
  for (int round = 0; round < 10; ++round) {
    Words high0, low0, high1, low1;
    multiply(c0, 0xD2511F53u, high0, low0);
    multiply(c2, 0xCD9E8D57u, high1, low1);
    c0 = hn::Xor(high1, hn::Xor(c1, hn::Set(u, key.k0)));
    c1 = low1;
    c2 = hn::Xor(high0, hn::Xor(c3, hn::Set(u, key.k1)));
    c3 = low0;
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// words[j][i] (kByKey) or words[i][j] = word of query i and key j, kTile words to a row.
template <bool kByKey>
HWY_NOINLINE void dropout_words(const AttentionShape& shape, std::int64_t sequence,
                                std::int64_t head, const QueryBlock& queries, const KeyBlock& keys,
                                std::uint32_t* words) {
  const U u;
  const std::uint64_t step = shape.dropout.step_now();
  alignas(64) std::uint32_t low[kLanes], high[kLanes], lane[kLanes];
  std::uint64_t row_index[kLanes] = {};
  for (std::int64_t i = 0; i < queries.rows; i += kLanes) {
    for (std::int64_t n = 0; n < std::min(kLanes, queries.rows - i); ++n) {
      row_index[n] = dropout_row_index(shape, sequence, head, queries.last[i + n]);
    }
    // Rows that begin at a multiple of four need a new block only for every fourth key.
    const bool aligned = shape.dropout.seq_len % 4 == 0;
    std::int32_t in_hand = -1;
    PhiloxLanes block = {};
    for (std::int64_t j = 0; j < keys.rows; ++j) {
      const std::int32_t position = keys.position[j];
      if (!aligned || position / 4 != in_hand) {
        for (std::int64_t n = 0; n < kLanes; ++n) {
          const std::uint64_t index = row_index[n] + static_cast<std::uint64_t>(position);
          low[n] = static_cast<std::uint32_t>(index >> 2);
          high[n] = static_cast<std::uint32_t>(index >> 34);
          lane[n] = static_cast<std::uint32_t>(index & 3);
        }
        block = philox_lanes(hn::LoadU(u, low), hn::LoadU(u, high), step, shape.dropout.key);
        in_hand = position / 4;
      }
      const Words which =
          aligned ? hn::Set(u, static_cast<std::uint32_t>(position & 3)) : hn::LoadU(u, lane);
      Words word = block.word[0];
      for (std::uint32_t w = 1; w < 4; ++w) {
        word = hn::IfThenElse(hn::Eq(which, hn::Set(u, w)), block.word[w], word);
      }
      if constexpr (kByKey) {
        hn::StoreU(word, u, words + j * kTile + i);
      } else {
        hn::StoreU(word, u, low);
        for (std::int64_t n = 0; n < kLanes; ++n) words[(i + n) * kTile + j] = low[n];
      }
    }
  }
}

/// Lanes whose element stays.
HWY_INLINE hn::Mask<F> kept(const std::uint32_t* words, std::uint32_t threshold) {
  const U u;
  return hn::RebindMask(F(), hn::Not(hn::Lt(hn::LoadU(u, words), hn::Set(u, threshold))));
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
