#pragma once
/// FP32 to bf16 by chance, so that the mean over many roundings is the number itself: what a
/// parameter without a master needs, or updates of less than half a step of bf16 would be lost.

#include <cstdint>

#include "lib/base/philox.hpp"
#include "lib/tensor/dtype.hpp"

namespace llmtrain {

/// Rounds up in magnitude with the probability that the low half of x is of 2^16, by 16 random
/// bits; a bf16 stays as it is. Infinities and NaN are those of split_master(); what is finite
/// stays finite.
constexpr bf16 round_by_half(float x, std::uint16_t half) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const auto down = static_cast<std::uint16_t>(u >> 16);
  if (x != x) return {static_cast<std::uint16_t>(down | 0x40u)};
  const auto near = static_cast<std::uint16_t>((u + half) >> 16);
  constexpr std::uint32_t kInfinity = 0x7f80u;
  const bool overflows = (near & 0x7fffu) == kInfinity && (down & 0x7fffu) != kInfinity;
  return {overflows ? down : near};
}

/// The same by the upper half of a random word.
constexpr bf16 round_stochastically(float x, std::uint32_t word) {
  return round_by_half(x, static_cast<std::uint16_t>(word >> 16));
}

/// The 16 bits of element `index` in the word of the four elements of index / 4: two neighbours
/// share a half, the even one with its bytes in the other order. The second byte decides in one of
/// 256 cases only, so what two of them do is all but independent.
constexpr std::uint16_t shared_half(std::uint32_t word, std::uint64_t index) {
  const auto half = static_cast<std::uint16_t>(index % 4 < 2 ? word : word >> 16);
  if (index % 2 != 0) return half;
  return static_cast<std::uint16_t>(half << 8 | half >> 8);
}

/// The random words of one parameter, or none. Words of the update number n are those of
/// Philox(key, step n) at the logical row-major index of an element, whatever part of the parameter
/// this rank holds.
struct StochasticRounding {
  bool on = false;  // else to nearest
  PhiloxKey key;
  /// Of element 0; elements lie in rows of `columns`, which are `stride` apart. A part of whole
  /// rows is one row.
  std::int64_t first = 0, columns = 1, stride = 1;
  /// Elements of those rows that lie before element 0, where another rank has them.
  std::int64_t before = 0;

  /// Elements from this one on whose indices follow one another.
  constexpr std::int64_t adjacent(std::int64_t element) const {
    return columns - (element + before) % columns;
  }
  constexpr std::uint64_t index(std::int64_t element) const {
    element += before;
    if (element < columns) return static_cast<std::uint64_t>(first + element);
    return static_cast<std::uint64_t>(first + element / columns * stride + element % columns);
  }
  /// 16 bits for each element, of a word for four: see shared_half().
  constexpr std::uint16_t half(std::uint64_t update, std::int64_t element) const {
    const std::uint64_t at = index(element);
    return shared_half(philox_word(key, update, at / 4), at);
  }
};

}  // namespace llmtrain
