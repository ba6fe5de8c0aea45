#pragma once
/// Weights and token batches by integer formulas: scripts/golden/formula.py says the same in
/// Python.

#include <cstdint>
#include <string_view>
#include <vector>

namespace llmtrain::test {

/// SplitMix64 of the FNV-1a hash of `name` plus a stride per index.
inline std::uint64_t formula_word(std::string_view name, std::uint64_t index) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  std::uint64_t z = hash + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// offset + scale * u with u a multiple of 2^-23 in [-1, 1), rounded once to FP32.
inline std::vector<float> formula_weights(std::string_view name, std::int64_t count, double offset,
                                          double scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double u = static_cast<double>(formula_word(name, i) >> 40) * 0x1p-23 - 1.0;
    values[i] = static_cast<float>(offset + scale * u);
  }
  return values;
}

/// An integer in [0, bound).
inline std::int32_t formula_below(std::string_view name, std::uint32_t bound, std::uint64_t index) {
  return static_cast<std::int32_t>((formula_word(name, index) >> 32) % bound);
}

}  // namespace llmtrain::test
