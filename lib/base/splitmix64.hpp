#pragma once
/// A small generator of reproducible numbers, the same in Python in two lines. What training draws
/// comes from Philox (philox.hpp), which is addressed by position.

#include <cstdint>

namespace llmtrain {

/// A bijection of 64-bit words that spreads every bit over all others: the finaliser of splitmix64.
constexpr std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// splitmix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014).
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() { return mixed_bits(state_ += 0x9E3779B97F4A7C15u); }

 private:
  std::uint64_t state_;
};

}  // namespace llmtrain
