// The inner loops of gemm.cpp in FP32, compiled once per instruction set.
#include "kernels/cpu/fast/gemm_blocks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/gemm_tile.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/gemm_pack-inl.h"
#include "kernels/cpu/fast/gemm_put-inl.h"
#include "kernels/matmul_workspace.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// The kernel's tile of c: 6 rows of two vectors are 12 sums, of 16 registers.
constexpr std::int64_t kRows = 6;
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

template <class T>
void multiply_block(const GemmBlock& block) {
  const auto* const a = reinterpret_cast<const float*>(block.a);
  const auto* const b = reinterpret_cast<const float*>(block.b);
  for (std::int64_t j = 0; j < block.cols; j += kCols) {
    for (std::int64_t i = 0; i < block.rows; i += kRows) {
      prefetch_tile<T>(block, i, j, std::min(kRows, block.rows - i));
      V sums[kRows][2];
      multiply_panels(a + i * block.depth, b + j * block.depth, block.depth, sums);
      put_tile<T>(sums, block, i, j);
    }
  }
}

void multiply(const GemmBlock& block) {
  with_fast_type(block.to_dtype, [&]<class T>() { multiply_block<T>(block); });
}

void pack_rows(const GemmOperand& a, std::int64_t lines, std::int64_t depth, void* panels) {
  pack<kRows>(a, lines, depth, static_cast<float*>(panels));
}

void pack_columns(const GemmOperand& b, std::int64_t lines, std::int64_t depth, void* panels) {
  pack<kCols>(b, lines, depth, static_cast<float*>(panels));
}

const GemmKernel* kernel() {
  static constexpr GemmKernel kKernel{.panel_rows = kRows,
                                      .panel_cols = kCols,
                                      .max_depth = kGemmDepth,
                                      .depth_unit = 1,
                                      .element_bytes = sizeof(float),
                                      .pack_rows = pack_rows,
                                      .pack_columns = pack_columns,
                                      .multiply = multiply};
  return &kKernel;
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(kernel);

const GemmKernel& gemm_fp32_kernel() { return *HWY_DYNAMIC_DISPATCH(kernel)(); }

}  // namespace llmtrain::kernels::fast
#endif
