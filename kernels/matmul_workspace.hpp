#pragma once
/// Where a CPU matrix product keeps what it needs besides its operands. A pure function, so that
/// the plan needs neither the device nor the library that computes the product.

#include "kernels/matmul.hpp"

namespace llmtrain::kernels {

/// Products that the library cannot do directly go through FP32 tiles of at most these sizes.
inline constexpr std::int64_t kTileRows = 1024;
inline constexpr std::int64_t kTileCols = 512;
inline constexpr std::int64_t kTileDepth = 1024;

/// Elements from row to row of a tile of `cols` columns: rows a power of two apart would fall into
/// the same few lines of a cache, which halves the speed of a product that reads columns.
constexpr std::int64_t tile_stride(std::int64_t cols) { return cols + 16; }

/// Byte offsets into the workspace. The library's scratch comes first, then the tiles of a, b and
/// c.
struct MatmulWorkspace {
  std::uint64_t scratch_bytes = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  std::uint64_t total_bytes = 0;
};

MatmulWorkspace matmul_workspace(const Matmul& mm, int threads);

}  // namespace llmtrain::kernels
