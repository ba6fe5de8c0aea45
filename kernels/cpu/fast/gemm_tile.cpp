// The inner loops of gemm.cpp, compiled once per instruction set.
#include "kernels/cpu/fast/gemm_blocks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/gemm_tile.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fast/gemm_pack-inl.h"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/matmul_workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// The kernel's tile of c: 6 rows of two vectors are 12 sums, of 16 registers.
constexpr std::int64_t kRows = kPanelRows;
constexpr std::int64_t kCols = 2 * kLanes;
static_assert(kGemmRows % kRows == 0 && kGemmCols % kCols == 0);  // blocks are whole panels

/// sums[6][2 vectors] = a b over `depth` elements of a panel of a and a panel of b. Four elements
/// at a time: one by one, the loop's own instructions take a tenth of the time.
HWY_INLINE void multiply_panels(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                                std::int64_t depth, V (&sums)[kRows][2]) {
  const F d;
  for (auto& row : sums) row[0] = row[1] = hn::Zero(d);
#pragma GCC unroll 4
  for (std::int64_t p = 0; p < depth; ++p, a += kRows, b += kCols) {
    const V b0 = hn::LoadU(d, b);
    const V b1 = hn::LoadU(d, b + kLanes);
    for (std::int64_t i = 0; i < kRows; ++i) {
      const V x = hn::Set(d, a[i]);
      sums[i][0] = hn::MulAdd(x, b0, sums[i][0]);
      sums[i][1] = hn::MulAdd(x, b1, sums[i][1]);
    }
  }
}

/// Finishes the tile at (i, j) of the block: `rows` x `cols` of it lie in c.
template <class T>
HWY_INLINE void put_tile(const V (&sums)[kRows][2], const GemmBlock& block, std::int64_t i,
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
template <bool add>
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

template <class T>
void multiply_block(const GemmBlock& block) {
  for (std::int64_t j = 0; j < block.cols; j += kCols) {
    const float* b = block.b + j * block.depth;
    for (std::int64_t i = 0; i < block.rows; i += kRows) {
      // Rows of c lie far apart: by the time the sums are there, these lines are too.
      const std::int64_t rows = std::min(kRows, block.rows - i);
      for (std::int64_t r = 0; r < rows; ++r) {
        hwy::Prefetch(static_cast<T*>(block.to) + (i + r) * block.to_stride + j);
        hwy::Prefetch(static_cast<T*>(block.to) + (i + r) * block.to_stride + j + kCols - 1);
      }
      V sums[kRows][2];
      multiply_panels(block.a + i * block.depth, b, block.depth, sums);
      if (std::is_same_v<T, float> && put_quickly(sums, block, i, j)) continue;
      put_tile<T>(sums, block, i, j);
    }
  }
}

void multiply(const GemmBlock& block) {
  if (block.to_dtype == DType::bf16) {
    multiply_block<bf16>(block);
  } else {
    multiply_block<float>(block);
  }
}

void pack_rows(const GemmOperand& a, std::int64_t lines, std::int64_t depth, float* panels) {
  pack<kRows>(a, lines, depth, panels);
}

void pack_columns(const GemmOperand& b, std::int64_t lines, std::int64_t depth, float* panels) {
  pack<kCols>(b, lines, depth, panels);
}

std::int64_t panel_cols() { return kCols; }

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(multiply);
HWY_EXPORT(pack_rows);
HWY_EXPORT(pack_columns);
HWY_EXPORT(panel_cols);

std::int64_t gemm_panel_cols() { return HWY_DYNAMIC_DISPATCH(panel_cols)(); }

void gemm_pack_rows(const GemmOperand& a, std::int64_t lines, std::int64_t depth, float* panels) {
  HWY_DYNAMIC_DISPATCH(pack_rows)(a, lines, depth, panels);
}

void gemm_pack_columns(const GemmOperand& b, std::int64_t lines, std::int64_t depth,
                       float* panels) {
  HWY_DYNAMIC_DISPATCH(pack_columns)(b, lines, depth, panels);
}

void gemm_multiply(const GemmBlock& block) { HWY_DYNAMIC_DISPATCH(multiply)(block); }

}  // namespace llmtrain::kernels::fast
#endif
