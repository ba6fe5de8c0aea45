#pragma once
/// The code of a dynamic 8-bit number without a search: by its sign, exponent and first seven
/// digits it lies in a bin, and no bin has more than one bound of the map inside.

#include <array>
#include <bit>
#include <cstdint>

#include "kernels/dynamic_map.hpp"

namespace llmtrain::kernels::fast {

struct CodeBins {
  /// Bins begin where a float's upper half changes: of magnitudes from 2^-23 to 1; the first has
  /// all smaller ones, too.
  static constexpr int kShift = 16;
  static constexpr std::int32_t kFirstKey = std::bit_cast<std::int32_t>(0x1p-23f) >> kShift;
  static constexpr std::int32_t kOfSign =
      (std::bit_cast<std::int32_t>(1.0f) >> kShift) - kFirstKey + 1;
  static constexpr std::int32_t kBins = 2 * kOfSign;  // those of negative numbers last

  /// x in [-1, 1].
  static constexpr std::int32_t bin_of(float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    const std::int32_t key = ((bits & 0x7fffffff) >> kShift) - kFirstKey;
    const std::int32_t bin = key < 0 ? 0 : key;
    return bin + (bits < 0 ? kOfSign : 0);
  }

  /// Of each bin the code of its least number, and the bound above which another has the next.
  std::array<std::int32_t, kBins> first{};
  std::array<float, kBins> bounds{};

  explicit CodeBins(const DynamicMap& map) {
    for (std::int32_t bin = 0; bin < kBins; ++bin) {
      const int code = map.code_of(least(bin));
      first[static_cast<std::size_t>(bin)] = code;
      bounds[static_cast<std::size_t>(bin)] = map.bounds[static_cast<std::size_t>(code)];
    }
  }
  /// The least and the greatest number of a bin.
  static float least(std::int32_t bin) {
    return bin < kOfSign ? nearest_to_zero(bin) : -farthest_from_zero(bin - kOfSign);
  }
  static float greatest(std::int32_t bin) {
    return bin < kOfSign ? farthest_from_zero(bin) : -nearest_to_zero(bin - kOfSign);
  }

 private:
  static float nearest_to_zero(std::int32_t key) {
    return key == 0 ? 0.0f : std::bit_cast<float>((key + kFirstKey) << kShift);
  }
  static float farthest_from_zero(std::int32_t key) {
    if (key + 1 == kOfSign) return 1.0f;
    return std::bit_cast<float>(((key + kFirstKey + 1) << kShift) - 1);
  }
};

/// Of the map of a state (dynamic_map_of).
inline const CodeBins& code_bins_of(std::size_t state) {
  static const CodeBins kBins[] = {CodeBins(kSignedDynamicMap), CodeBins(kUnsignedDynamicMap)};
  return kBins[state];
}

}  // namespace llmtrain::kernels::fast
