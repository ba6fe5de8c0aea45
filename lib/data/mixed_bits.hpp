#pragma once
/// A bijection of 64-bit words that spreads every bit over all others.

#include <cstdint>

namespace llmtrain::data {

/// Finaliser of splitmix64 (Steele et al., 2014).
constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace llmtrain::data
