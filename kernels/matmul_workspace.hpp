#pragma once
/// Where a CPU matrix product keeps what it needs besides its operands. A pure function, so that
/// the plan needs neither the device nor its instruction set.

#include "kernels/matmul.hpp"

namespace llmtrain::kernels {

/// Largest blocks: rows of a and columns of b that are packed at a time, and the piece of the sum
/// in FP32. Where bf16 is packed as it is, a piece is twice as long in the same bytes.
inline constexpr std::int64_t kGemmRows = 96;
inline constexpr std::int64_t kGemmCols = 768;
inline constexpr std::int64_t kGemmDepth = 384;
/// Rows of c whose sums are kept in FP32 at a time, when c is bf16 or fp16 and the sum has several
/// pieces.
inline constexpr std::int64_t kGemmSumRows = 1024;
/// Elements of a that are packed once for all columns of c; a larger a is packed for every block of
/// columns again.
inline constexpr std::int64_t kGemmWholeA = 1 << 21;

/// Packed blocks come first, then FP32 sums at byte `sums`, then all of a packed at byte
/// `packed_a`, if the product packs it once.
struct MatmulWorkspace {
  std::uint64_t sums = 0;
  std::uint64_t packed_a = 0;
  bool packs_a_once = false;
  std::uint64_t total_bytes = 0;
};

MatmulWorkspace matmul_workspace(const Matmul& mm, int threads);

}  // namespace llmtrain::kernels
