#pragma once
/// Column sums in two stages: row blocks, each summed in ascending order from zero, into the
/// workspace; then the blocks in ascending order onto the sinks.

#include <algorithm>

#include "kernels/cuda/element.cuh"
#include "kernels/row_blocks.hpp"

namespace llmtrain::kernels::cuda {

/// Threads of the first stage: each sums a pack of columns of one row block.
inline constexpr int kRowBlockThreads = 128;
/// Columns of such a pack. Few: the sums of a thread follow one another, and only many threads have
/// enough loads under way.
template <class T>
inline constexpr int kRowBlockPack = sizeof(T) == 8 ? 1 : 2;

inline unsigned row_block_grid(std::int64_t blocks, std::int64_t packs) {
  return static_cast<unsigned>(ceil_div(blocks * packs, kRowBlockThreads));
}

/// Which row block and pack a thread of the first stage has.
struct RowBlockPart {
  std::int64_t block, pack, per_block;
  __device__ explicit RowBlockPart(std::int64_t packs, std::int64_t rows_per_block = kRowsPerBlock)
      : per_block(rows_per_block) {
    const std::int64_t item = std::int64_t{blockIdx.x} * kRowBlockThreads + threadIdx.x;
    block = item / packs;
    pack = item - block * packs;
  }
  __device__ std::int64_t begin() const { return block * per_block; }
  /// Rows of the block; at most 0 for a thread without one.
  __device__ int count(std::int64_t rows) const {
    return static_cast<int>(std::min(rows - begin(), per_block));
  }
};

inline constexpr int kJoinColumns = 32;
inline constexpr int kJoinWarps = 8;
/// Row blocks that are fetched together.
inline constexpr int kJoinTile = 128;

/// Adds from[0, j], then from[1, j], ... onto sink[j], or onto 0 unless `onto_sink`, for the
/// columns j from `first` on. All warps fetch, for additions that must follow one another would
/// otherwise each wait for memory; the first warp adds, while the next tile is on its way.
template <class W>
__device__ void join_columns(const W* from, W* sink, bool onto_sink, std::int64_t first,
                             std::int64_t blocks, std::int64_t cols) {
  constexpr int kFetches = kJoinTile / kJoinWarps;
  __shared__ W tile[kJoinTile][kJoinColumns];
  const int x = static_cast<int>(threadIdx.x) % kJoinColumns;
  const int y = static_cast<int>(threadIdx.x) / kJoinColumns;
  const std::int64_t j = first + x;
  W ahead[kFetches];
  const auto fetch = [&](std::int64_t begin) {
#pragma unroll
    for (int k = 0; k < kFetches; ++k) {
      const std::int64_t block = begin + k * kJoinWarps + y;
      ahead[k] = block < blocks && j < cols ? from[block * cols + j] : W{0};
    }
  };
  const bool adds = y == 0 && j < cols;
  W sum = adds && onto_sink ? sink[j] : W{0};
  fetch(0);
  for (std::int64_t begin = 0; begin < blocks; begin += kJoinTile) {
#pragma unroll
    for (int k = 0; k < kFetches; ++k) tile[k * kJoinWarps + y][x] = ahead[k];
    __syncthreads();
    fetch(begin + kJoinTile);
    if (adds) {
      const int count = static_cast<int>(std::min(blocks - begin, std::int64_t{kJoinTile}));
#pragma unroll 16
      for (int b = 0; b < count; ++b) sum += tile[b][x];
    }
    __syncthreads();
  }
  if (adds) sink[j] = sum;
}

/// blockIdx.y = 0 for the first sink and its partial sums, 1 for the second and those that lie
/// behind.
template <class W>
__global__ void __launch_bounds__(kJoinColumns* kJoinWarps)
    join_row_blocks(const W* partial, W* first, W* second, std::int64_t blocks, std::int64_t cols) {
  join_columns(partial + blockIdx.y * blocks * cols, blockIdx.y == 0 ? first : second, true,
               std::int64_t{blockIdx.x} * kJoinColumns, blocks, cols);
}

/// Queues the second stage; `second` may be null.
template <class W>
void join(const KernelCtx& ctx, std::int64_t blocks, std::int64_t cols, const W* partial, W* first,
          W* second) {
  if (blocks == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(cols, kJoinColumns)), second == nullptr ? 1u : 2u);
  launch_grid(ctx, {grid, kJoinColumns * kJoinWarps}, join_row_blocks<W>, partial, first, second,
              blocks, cols);
}

/// Writes a pack of sums in accesses of at most 16 bytes.
template <int V, class W>
__device__ __forceinline__ void store_sums(W* to, const W (&sums)[V]) {
  constexpr int kPart = V < kPack<W> ? V : kPack<W>;
  for (int part = 0; part < V; part += kPart) {
    Pack<W, kPart> pack;
    for (int i = 0; i < kPart; ++i) pack.x[i] = sums[part + i];
    store_pack(to + part, pack);
  }
}

}  // namespace llmtrain::kernels::cuda
