// The inner loops of gemm.cpp in bf16, for processors whose instructions multiply it. Highway has
// none for it, so that they are written out for AVX-512; a lesser target, also one that a test
// asks for, has no such kernel.
#include "kernels/cpu/fast/gemm_blocks.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/gemm_bf16_tile.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fast/gemm_put-inl.h"
#include "kernels/matmul_workspace.hpp"

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// Two elements of a line, side by side: what a lane multiplies and adds up at a time.
using Pair = std::uint32_t;
constexpr std::int64_t kVector = 16;  // pairs

/// Rows of a matrix that are packed at a time, where lines lie side by side.
constexpr std::int64_t kPackedRows = 16;

/// The kernel's tile of c: 12 rows of two vectors are 24 sums, of 32 registers.
constexpr std::int64_t kRows = 12;
constexpr std::int64_t kMaxDepth = 2 * kGemmDepth;
static_assert(kLanes == kVector && kGemmRows % kRows == 0 && kGemmCols % kCols == 0);

/// Lanes below `count`.
HWY_INLINE __mmask16 first_lanes(std::int64_t count) {
  return count >= kVector ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1);
}

/// The first `count` lines of 32 elements each, of which `elements` are loaded, as 16 vectors of
/// pairs of 16 lines; lines and elements that are not there are zero.
HWY_INLINE void turn_lines(const bf16* from, std::int64_t line_stride, std::int64_t count,
                           std::int64_t elements, __m512i (&out)[kVector]) {
  const __mmask32 loaded = elements >= 32 ? ~__mmask32{0} : (__mmask32{1} << elements) - 1;
  __m512i lines[kVector], pairs[kVector], quads[kVector];
  for (std::int64_t i = 0; i < kVector; ++i) {
    lines[i] = i < count ? _mm512_maskz_loadu_epi16(loaded, from + i * line_stride)
                         : _mm512_setzero_si512();
  }
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // quads[4 g + c] has in its quarter l the pairs 4 l + c of lines [4 g, 4 g + 4).
  for (int c = 0; c < 4; ++c) {
    const __m512i even = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x88);
    const __m512i even2 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x88);
    const __m512i odd = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xdd);
    const __m512i odd2 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xdd);
    out[c] = _mm512_shuffle_i32x4(even, even2, 0x88);
    out[4 + c] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
    out[8 + c] = _mm512_shuffle_i32x4(even, even2, 0xdd);
    out[12 + c] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
  }
}

/// A panel of lines each of which lies in one piece. A line of the cache at a time: at distances
/// like 4 KiB they share a set of the cache, which has not room for all of them.
template <std::int64_t width>
HWY_INLINE void pack_along(const bf16* x, const GemmOperand& from, std::int64_t lines,
                           std::int64_t depth, Pair* panel) {
  for (std::int64_t p = 0; p < depth; p += 2 * kVector) {
    // The next panel's lines: each is too short for the processor to read ahead by itself.
    for (std::int64_t i = 0; i < width; ++i) hwy::Prefetch(x + p + (width + i) * from.line_stride);
    for (std::int64_t i = 0; i < width; i += kVector) {
      __m512i turned[kVector];
      turn_lines(x + p + i * from.line_stride, from.line_stride, lines - i, depth - p, turned);
      const std::int64_t pairs = std::min(kVector, (depth - p + 1) / 2);
      Pair* to = panel + p / 2 * width + i;
      for (std::int64_t r = 0; r < kVector; ++r, to += width) {
        if (r < pairs) _mm512_mask_storeu_epi32(to, first_lanes(width - i), turned[r]);
      }
    }
  }
}

/// Elements [begin, end) of a panel of lines that lie side by side.
template <std::int64_t width>
HWY_INLINE void pack_across(const bf16* x, const GemmOperand& from, std::int64_t lines,
                            std::int64_t begin, std::int64_t end, Pair* panel) {
  for (std::int64_t i = 0; i < width; i += kVector) {
    const __mmask16 there = first_lanes(std::max<std::int64_t>(0, lines - i));
    const auto load_row = [&](std::int64_t p) {
      const bf16* const row = x + p * from.depth_stride + i;
      // Rows are too far apart for the processor to read ahead by itself.
      hwy::Prefetch(row + kPackedRows * from.depth_stride);
      return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, row));
    };
    for (std::int64_t p = begin; p < end; p += 2) {
      const __m512i first = load_row(p);
      const __m512i second = p + 1 < end ? load_row(p + 1) : _mm512_setzero_si512();
      _mm512_mask_storeu_epi32(panel + p / 2 * width + i, first_lanes(width - i),
                               _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    }
  }
}

template <std::int64_t width>
void pack(const GemmOperand& from, std::int64_t lines, std::int64_t depth, void* panels) {
  const auto* const x = reinterpret_cast<const bf16*>(from.data);
  auto* const to = static_cast<Pair*>(panels);
  const std::int64_t pairs = (depth + 1) / 2;
  if (from.line_stride != 1) {
    for (std::int64_t i = 0; i < lines; i += width) {
      pack_along<width>(x + i * from.line_stride, from, lines - i, depth, to + i * pairs);
    }
    return;
  }
  // Few rows at a time, over all panels: they fill pages and lines of the cache of which a panel
  // takes a part.
  for (std::int64_t p = 0; p < depth; p += kPackedRows) {
    const std::int64_t end = std::min(depth, p + kPackedRows);
    for (std::int64_t i = 0; i < lines; i += width) {
      pack_across<width>(x + i, from, lines - i, p, end, to + i * pairs);
    }
  }
}

/// sums[rows][2 vectors] = a b over `pairs` pairs of a panel of a and a panel of b.
template <std::int64_t rows>
HWY_INLINE void multiply_panels(const Pair* HWY_RESTRICT a, const Pair* HWY_RESTRICT b,
                                std::int64_t pairs, V (&sums)[rows][2]) {
  __m512 x[rows], y[rows];  // what `sums` gets may lie in memory; these do not
  for (std::int64_t i = 0; i < rows; ++i) x[i] = y[i] = _mm512_setzero_ps();
  for (std::int64_t p = 0; p < pairs; ++p, a += kRows, b += kCols) {
    const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
    const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + kVector));
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i])));
      x[i] = _mm512_dpbf16_ps(x[i], factor, left);
      y[i] = _mm512_dpbf16_ps(y[i], factor, right);
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    sums[i][0].raw = x[i];
    sums[i][1].raw = y[i];
  }
}

template <class T, std::int64_t rows>
HWY_INLINE void multiply_tile(const GemmBlock& block, std::int64_t i, std::int64_t j) {
  const std::int64_t pairs = block.depth / 2;
  const Pair* const a = reinterpret_cast<const Pair*>(block.a) + i * pairs;
  const Pair* const b = reinterpret_cast<const Pair*>(block.b) + j * pairs;
  prefetch_tile<T>(block, i, j, std::min(rows, block.rows - i));
  V sums[rows][2];
  multiply_panels<rows>(a, b, pairs, sums);
  put_tile<T>(sums, block, i, j);
}

template <class T>
void multiply_block(const GemmBlock& block) {
  for (std::int64_t j = 0; j < block.cols; j += kCols) {
    for (std::int64_t i = 0; i < block.rows; i += kRows) {
      if (block.rows - i > kRows / 2) {
        multiply_tile<T, kRows>(block, i, j);
      } else {
        multiply_tile<T, kRows / 2>(block, i, j);
      }
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

const GemmKernel* bf16_kernel() {
  static constexpr GemmKernel kKernel{.panel_rows = kRows,
                                      .panel_cols = kCols,
                                      .max_depth = kMaxDepth,
                                      .depth_unit = 2,
                                      .element_bytes = sizeof(bf16),
                                      .pack_rows = pack<kRows>,
                                      .pack_columns = pack<kCols>,
                                      .multiply = multiply};
  return __builtin_cpu_supports("avx512bf16") ? &kKernel : nullptr;
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#else

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

const GemmKernel* bf16_kernel() { return nullptr; }

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(bf16_kernel);

const GemmKernel* gemm_bf16_kernel() { return HWY_DYNAMIC_DISPATCH(bf16_kernel)(); }

}  // namespace llmtrain::kernels::fast
#endif
