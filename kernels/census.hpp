#pragma once
/// How the numbers of a tensor are distributed: what precision they need.

#include "kernels/kernel.hpp"

namespace llmtrain::kernels {

/// Adds the numbers of x [rows, cols], strided, FP64 | FP32 | BF16 | FP16, to a census that
/// `counts`, `powers` and `amax` hold, all FP64:
/// - counts [kBins]: how many have a magnitude of each size, by the upper ten bits below the sign
/// of
///   its FP32 pattern, which cut every octave into four. Zeros, and what is below 2^-128, are in
///   bin 0; what is infinite in FP32, or NaN, from kNotFinite on.
/// - powers [kPowers]: sums of x, x^2, x^3 and x^4 over those that are finite.
/// - amax [1]: the largest finite magnitude.
/// Counts are exact below 2^53. Sums are those of up to kParts equal parts of x, in their order,
/// which `scratch` FP64 [kParts, kColumns] holds meanwhile: the same bits whatever threads there
/// are. (It is an operand because a census that is taken now and then must not change what a step
/// allocates.)
struct Census {
  static constexpr std::string_view name = "census";
  static constexpr std::int64_t kBins = 1024, kNotFinite = 1020, kPowers = 4;
  static constexpr std::int64_t kColumns = kBins + kPowers + 1;
  static constexpr std::int64_t kParts = 128;
  View x;
  View counts, powers, amax;
  View scratch;
  void check() const;
  Cost cost() const;
  DType dtype() const { return x.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {x.rows(), x.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }

  /// Of at least 4,096 numbers each, but for one of less.
  static constexpr std::int64_t parts(std::int64_t numel) {
    const std::int64_t fit = (numel + 4095) / 4096;
    return fit < kParts ? fit : kParts;
  }
  static constexpr std::int64_t first_of_part(std::int64_t part, std::int64_t numel) {
    return part * numel / parts(numel);
  }
  /// Of the FP32 pattern of a number.
  static constexpr std::int64_t bin_of(std::uint32_t bits) { return bits << 1 >> 22; }
  /// Magnitudes of a bin are from this one on to below the next one's.
  static double least_of_bin(std::int64_t bin);
};

}  // namespace llmtrain::kernels
