#pragma once
/// A small generator of reproducible numbers, the same in Python in two lines. What training draws
/// comes from Philox (philox.hpp), which is addressed by position.

#include <cstdint>

namespace llmtrain {

/// splitmix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014).
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

}  // namespace llmtrain
