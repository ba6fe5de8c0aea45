#pragma once
/// The dynamic 8-bit numbers of "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861):
/// 256 values in [-1, 1] or [0, 1] that lie close together near zero, over seven powers of ten.
/// A block of kDynamicBlock elements has a code each and one scale, its largest magnitude.
///
/// Values, blocks and rounding are those of bitsandbytes (create_dynamic_map, and
/// quantize_blockwise as it computes in PyTorch), to the bit; and as in its kernels for GPUs
/// (kOptimizerStatic8bit1StateBlockwise and its kin) a state keeps its sign: no number below zero
/// becomes zero.

#include <array>
#include <cstdint>
#include <limits>

namespace llmtrain::kernels {

inline constexpr std::int64_t kDynamicBlock = 256;
inline constexpr int kDynamicCodes = 256;

constexpr std::int64_t dynamic_blocks(std::int64_t numel) {
  return (numel + kDynamicBlock - 1) / kDynamicBlock;
}

struct DynamicMap {
  /// Of each code, ascending.
  std::array<float, kDynamicCodes> values{};
  /// bounds[i]: half way between the values i and i + 1, but that below zero is the greatest
  /// number that is; nothing is above the last.
  std::array<float, kDynamicCodes> bounds{};

  /// The code whose value is nearest to x, of two the lower, and has its sign: how many bounds are
  /// below x.
  static constexpr int code_of(const float* bounds, float x) {
    int code = 0;
    for (int step = kDynamicCodes / 2; step > 0; step /= 2) {
      if (bounds[code + step - 1] < x) code += step;
    }
    return code;
  }
  constexpr int code_of(float x) const { return code_of(bounds.data(), x); }
};

namespace detail {

/// Point i of n + 1 from 0.1 to 1 as torch.linspace has it in FP32: counted from the nearer end,
/// rounded once.
constexpr float linear_point(int n, int i) {
  constexpr float kFirst = 0.1f, kLast = 1.0f;
  const double step = (kLast - kFirst) / static_cast<float>(n);
  return static_cast<float>(i < (n + 1) / 2 ? kFirst + step * i : kLast - step * (n - i));
}

}  // namespace detail

/// Of each power of ten the middles of equal parts of [0.1, 1], twice as many as of the one below
/// it, with both signs or none; zero; one.
constexpr DynamicMap dynamic_map(bool is_signed) {
  constexpr float kPowers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  DynamicMap map;
  const int zero = is_signed ? kDynamicCodes / 2 - 1 : 0;
  int above = zero;
  for (int e = 0; e < 7; ++e) {
    const int parts = is_signed ? 1 << e : 2 << e;
    for (int k = 0; k < parts; ++k) {
      const float middle =
          (detail::linear_point(parts, k) + detail::linear_point(parts, k + 1)) / 2;
      ++above;
      map.values[static_cast<std::size_t>(above)] = kPowers[e] * middle;
      if (is_signed) {
        map.values[static_cast<std::size_t>(2 * zero - above)] = -(kPowers[e] * middle);
      }
    }
  }
  map.values[kDynamicCodes - 1] = 1;
  for (std::size_t i = 0; i + 1 < kDynamicCodes; ++i) {
    map.bounds[i] = (map.values[i] + map.values[i + 1]) / 2;
  }
  if (is_signed) {
    map.bounds[static_cast<std::size_t>(zero - 1)] = -std::numeric_limits<float>::denorm_min();
  }
  map.bounds[kDynamicCodes - 1] = std::numeric_limits<float>::infinity();
  return map;
}

inline constexpr DynamicMap kSignedDynamicMap = dynamic_map(true);
inline constexpr DynamicMap kUnsignedDynamicMap = dynamic_map(false);

/// How a block's values become numbers of a map. `largest` is their largest magnitude; a block is
/// `whole` unless it is a tensor's last and short.
struct DynamicScale {
  static constexpr float kLeast = 1e-38f;
  /// What is stored: a code stands for its value times this.
  float scale;
  /// 1 / scale, by which whole blocks are multiplied; short ones are divided.
  float inverse;
  bool whole;

  constexpr DynamicScale(float largest, bool is_whole)
      : scale(is_whole || largest > kLeast ? largest : kLeast),
        inverse(1.0f / (largest > kLeast ? largest : kLeast)),
        whole(is_whole) {}
  /// In [-1, 1], whatever x is.
  constexpr float scaled(float x) const {
    const float y = whole ? x * inverse : x / scale;
    const float raised = y > -1.0f ? y : -1.0f;
    return raised < 1.0f ? raised : 1.0f;
  }
};

}  // namespace llmtrain::kernels
