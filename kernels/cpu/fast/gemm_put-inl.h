// Ways of a tile of sums from registers into c. Included once per instruction set, like
// vector-inl.h, hence the unusual guard.
#if defined(LLMTRAIN_GEMM_PUT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_GEMM_PUT_INL_H
#undef LLMTRAIN_GEMM_PUT_INL_H
#else
#define LLMTRAIN_GEMM_PUT_INL_H
#endif

#include <algorithm>

#include <hwy/cache_control.h>

#include "kernels/cpu/fast/gemm_blocks.hpp"
#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// Columns of a tile.
inline constexpr std::int64_t kCols = 2 * kLanes;

/// Rows of c lie far apart: by the time a tile's sums are there, these lines are too.
template <class T>
HWY_INLINE void prefetch_tile(const GemmBlock& block, std::int64_t i, std::int64_t j,
                              std::int64_t rows) {
  T* to = static_cast<T*>(block.to) + i * block.to_stride + j;
  for (std::int64_t r = 0; r < rows; ++r, to += block.to_stride) {
    hwy::Prefetch(to);
    hwy::Prefetch(to + kCols - 1);
  }
}

/// Finishes the tile at (i, j) of the block: as much of it as lies in c.
template <class T, std::int64_t kRows>
HWY_INLINE void put_any_tile(const V (&sums)[kRows][2], const GemmBlock& block, std::int64_t i,
                             std::int64_t j) {
  T* const to = static_cast<T*>(block.to) + i * block.to_stride + j;
  const float* const from =
      block.from == nullptr ? nullptr : block.from + i * block.from_stride + j;
  const std::int64_t rows = std::min(kRows, block.rows - i);
  const std::int64_t cols = std::min(kCols, block.cols - j);
  const auto finish = [&](std::int64_t r, std::int64_t c, V value, auto lanes) {
    if (from != nullptr) value = hn::Add(load(from + r * block.from_stride + c, lanes), value);
    if (block.add_to) value = hn::Add(load(to + r * block.to_stride + c, lanes), value);
    if (block.bias != nullptr) value = hn::Add(value, load(block.bias + j + c, lanes));
    store(value, to + r * block.to_stride + c, lanes);
  };
  for (std::int64_t r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    if (cols == kCols) {
      finish(r, 0, sums[r][0], Full{});
      finish(r, kLanes, sums[r][1], Full{});
    } else {
      finish(r, 0, sums[r][0], First{std::min(kLanes, cols)});
      if (cols > kLanes) finish(r, kLanes, sums[r][1], First{cols - kLanes});
    }
  }
}

/// The same for a whole tile that is only stored, or added to what is there.
template <bool add, std::int64_t kRows>
HWY_INLINE void put_whole_tile(const V (&sums)[kRows][2], float* to, std::int64_t stride) {
  const F d;
  for (std::int64_t r = 0; r < kRows; ++r, to += stride) {
    for (std::int64_t c = 0; c < 2; ++c) {
      float* const at = to + c * kLanes;
      hn::StoreU(add ? hn::Add(sums[r][c], hn::LoadU(d, at)) : sums[r][c], d, at);
    }
  }
}

/// The most frequent tile takes the short way out: FP32, whole, without bias.
template <std::int64_t kRows>
HWY_INLINE bool put_quickly(const V (&sums)[kRows][2], const GemmBlock& block, std::int64_t i,
                            std::int64_t j) {
  if (block.from != nullptr || block.bias != nullptr || i + kRows > block.rows ||
      j + kCols > block.cols) {
    return false;
  }
  float* const to = static_cast<float*>(block.to) + i * block.to_stride + j;
  if (block.add_to) {
    put_whole_tile<true>(sums, to, block.to_stride);
  } else {
    put_whole_tile<false>(sums, to, block.to_stride);
  }
  return true;
}

template <class T, std::int64_t kRows>
HWY_INLINE void put_tile(const V (&sums)[kRows][2], const GemmBlock& block, std::int64_t i,
                         std::int64_t j) {
  if (std::is_same_v<T, float> && put_quickly(sums, block, i, j)) return;
  put_any_tile<T>(sums, block, i, j);
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
