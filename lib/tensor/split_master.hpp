#pragma once
/// An FP32 master in two halves: its bf16 compute copy and 16 bits more, which together are exact.
///
/// The copy is the master rounded to nearest, the remainder its low half. Ties go away from zero:
/// 65,537 floats would round to an even bf16 with ties to even, one more than 16 bits tell apart.
/// Copies of whole masters are rounded in the same way, so that a run has the same bits whichever
/// form its masters have.

#include "lib/tensor/dtype.hpp"

namespace llmtrain {

struct MasterParts {
  bf16 copy;
  std::uint16_t remainder = 0;
  bool operator==(const MasterParts&) const = default;
};

/// A NaN stays one (quiet, sign and upper bits kept); its lower bits are lost.
constexpr MasterParts split_master(float master) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(master);
  if (master != master) return {{static_cast<std::uint16_t>((u >> 16) | 0x40u)}, 0};
  return {{static_cast<std::uint16_t>((u + 0x8000u) >> 16)}, static_cast<std::uint16_t>(u)};
}

/// What split_master() was given: a remainder of one half or more had rounded the copy up.
constexpr float join_master(MasterParts parts) {
  const std::uint32_t high = std::uint32_t{parts.copy.bits} - (parts.remainder >> 15);
  return std::bit_cast<float>(high << 16 | parts.remainder);
}

}  // namespace llmtrain
