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

/// How threads share c: a grid of parts of about the same size.
struct MatmulSplit {
  int row_parts = 1, col_parts = 1;
  int parts() const { return row_parts * col_parts; }

  struct Range {
    std::int64_t begin, size;
  };
  /// What a part has of `m` rows and of `n` columns.
  Range rows(std::int64_t m, int part) const;
  Range cols(std::int64_t n, int part) const;
};

/// The memory of each part lies behind that of the one before: packed blocks, then FP32 sums at
/// byte `sums`, then all rows of a packed at byte `packed_a`, if the product packs them once.
struct MatmulWorkspace {
  MatmulSplit split;
  std::uint64_t sums = 0;
  std::uint64_t packed_a = 0;
  bool packs_a_once = false;
  std::uint64_t part_bytes = 0;
  std::uint64_t total_bytes() const {
    return part_bytes * static_cast<std::uint64_t>(split.parts());
  }
};

MatmulWorkspace matmul_workspace(const Matmul& mm, int threads);
/// What no product takes more than that has at most as many rows, or, where both operands are read
/// by columns, at most as long a sum.
std::uint64_t matmul_workspace_bound(const Matmul& mm, int threads);

}  // namespace llmtrain::kernels
