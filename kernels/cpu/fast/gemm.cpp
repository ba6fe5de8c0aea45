// The product in five loops around a kernel on registers (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008): blocks of b and a are copied into panels that the
// kernel reads from end to end, whatever strides and transposes they come with.
#include "kernels/cpu/fast/gemm.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fast/gemm_blocks.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/parallel.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// The kernel's tile of c: 6 rows of two vectors are 12 sums, of 16 registers.
constexpr std::int64_t kRows = 6;
constexpr std::int64_t kCols = 2 * kLanes;

/// Copies `lines` lines of `depth` elements into panels of `width` lines, element p of all lines
/// side by side; the last panel is filled up with zeros. Element p of line i is
/// x[i * line_stride + p * depth_stride].
void pack(const float* x, std::int64_t line_stride, std::int64_t depth_stride, std::int64_t lines,
          std::int64_t depth, std::int64_t width, float* panels) {
  for (std::int64_t begin = 0; begin < lines; begin += width, panels += width * depth) {
    const std::int64_t count = std::min(width, lines - begin);
    const float* from = x + begin * line_stride;
    if (count < width) std::fill_n(panels, width * depth, 0.0F);
    if (line_stride == 1) {
      for (std::int64_t p = 0; p < depth; ++p) {
        std::memcpy(panels + p * width, from + p * depth_stride,
                    static_cast<std::size_t>(count) * sizeof(float));
      }
      continue;
    }
    // A few elements of each line at a time, so that what is written stays in the cache.
    constexpr std::int64_t kStep = 16;
    for (std::int64_t p0 = 0; p0 < depth; p0 += kStep) {
      const std::int64_t end = std::min(depth, p0 + kStep);
      for (std::int64_t i = 0; i < count; ++i) {
        const float* line = from + i * line_stride;
        for (std::int64_t p = p0; p < end; ++p) panels[p * width + i] = line[p * depth_stride];
      }
    }
  }
}

/// sums[6][2 vectors] = a b over `depth` elements of a panel of a and a panel of b.
HWY_INLINE void multiply_panels(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                                std::int64_t depth, V (&sums)[kRows][2]) {
  const F d;
  for (auto& row : sums) row[0] = row[1] = hn::Zero(d);
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

/// Writes or adds a tile: `rows` x `cols` of it lie in c. `bias` (one per column) may be null.
HWY_INLINE void put_tile(V (&sums)[kRows][2], std::int64_t rows, std::int64_t cols, bool add,
                         const float* bias, float* c, std::int64_t stride) {
  const F d;
  if (rows == kRows && cols == kCols) {
    for (std::int64_t i = 0; i < kRows; ++i, c += stride) {
      for (std::int64_t v = 0; v < 2; ++v) {
        V value = sums[i][v];
        if (add) value = hn::Add(hn::LoadU(d, c + v * kLanes), value);
        if (bias != nullptr) value = hn::Add(value, hn::LoadU(d, bias + v * kLanes));
        hn::StoreU(value, d, c + v * kLanes);
      }
    }
    return;
  }
  float tile[kRows * kCols];
  for (std::int64_t i = 0; i < kRows; ++i) {
    hn::StoreU(sums[i][0], d, tile + i * kCols);
    hn::StoreU(sums[i][1], d, tile + i * kCols + kLanes);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      float value = tile[i * kCols + j];
      if (add) value = c[i * stride + j] + value;
      if (bias != nullptr) value += bias[j];
      c[i * stride + j] = value;
    }
  }
}

/// The block of c of packed blocks of a and b.
void multiply_block(const GemmBlock& block) {
  for (std::int64_t j = 0; j < block.cols; j += kCols) {
    const float* b = block.b + j * block.depth;
    for (std::int64_t i = 0; i < block.rows; i += kRows) {
      V sums[kRows][2];
      multiply_panels(block.a + i * block.depth, b, block.depth, sums);
      put_tile(sums, std::min(kRows, block.rows - i), std::min(kCols, block.cols - j), block.add,
               block.bias == nullptr ? nullptr : block.bias + j, block.c + i * block.c_stride + j,
               block.c_stride);
    }
  }
}

void pack_a(const GemmOperand& a, std::int64_t rows, std::int64_t depth, float* panels) {
  pack(a.data, a.line_stride, a.depth_stride, rows, depth, kRows, panels);
}

void pack_b(const GemmOperand& b, std::int64_t cols, std::int64_t depth, float* panels) {
  pack(b.data, b.line_stride, b.depth_stride, cols, depth, kCols, panels);
}

std::int64_t panel_cols() { return kCols; }

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(multiply_block);
HWY_EXPORT(pack_a);
HWY_EXPORT(pack_b);
HWY_EXPORT(panel_cols);

namespace {

constexpr std::int64_t kDepth = 256;     // of panels: a panel of b fits in the innermost cache
constexpr std::int64_t kMaxRows = 144;   // of a block of a: it fits in a core's cache
constexpr std::int64_t kMaxCols = 1536;  // of a block of b: it fits in what cores share
constexpr std::int64_t kRowStep = 6;
/// Columns of the widest instruction set's kernel.
constexpr std::int64_t kColStep = 32;

constexpr std::int64_t round_up(std::int64_t x, std::int64_t step) {
  return (x + step - 1) / step * step;
}

/// Blocks of rows and columns such that all threads have equally many of equal size.
struct Grid {
  std::int64_t rows, cols;
  Grid(std::int64_t m, std::int64_t n, int threads) {
    const std::int64_t per_thread = (m + kMaxRows * threads - 1) / (kMaxRows * threads);
    rows =
        std::min(kMaxRows, round_up((m + per_thread * threads - 1) / (per_thread * threads), 24));
    // Few rows: threads share the columns too.
    const std::int64_t row_blocks = (m + rows - 1) / rows;
    const std::int64_t parts = row_blocks >= threads ? 1 : (threads + row_blocks - 1) / row_blocks;
    cols = round_up((n + parts - 1) / parts, kColStep);
  }
};

/// One block of b times all of a: c's columns [j, j + n), the sum over [p, p + depth).
void multiply_strip(const Matmul& mm, const GemmOperand& a, int threads, const float* packed_b,
                    std::int64_t j, std::int64_t n, std::int64_t p, std::int64_t depth,
                    float* packed_a) {
  const Grid grid(mm.m(), n, threads);
  const std::int64_t col_blocks = (n + grid.cols - 1) / grid.cols;
  const std::int64_t blocks = (mm.m() + grid.rows - 1) / grid.rows * col_blocks;
  const bool last = p + depth == mm.k();
  parallel_slots(threads, blocks, [&](int slot, std::int64_t task) {
    const std::int64_t i = task / col_blocks * grid.rows;
    const std::int64_t col = task % col_blocks * grid.cols;
    GemmBlock block;
    block.rows = std::min(grid.rows, mm.m() - i);
    block.cols = std::min(grid.cols, n - col);
    block.depth = depth;
    float* own = packed_a + slot * kMaxRows * kDepth;
    HWY_DYNAMIC_DISPATCH(pack_a)(a.at(i, p), block.rows, depth, own);
    block.a = own;
    block.b = packed_b + col * depth;
    block.c = mm.c.row<float>(i) + j + col;
    block.c_stride = mm.c.row_stride;
    block.add = mm.accumulate || p > 0;
    block.bias = last && mm.bias.defined() ? mm.bias.as<float>() + j + col : nullptr;
    HWY_DYNAMIC_DISPATCH(multiply_block)(block);
  });
}

}  // namespace

std::uint64_t gemm_scratch_bytes(int threads) {
  const auto elements = kMaxCols * kDepth + std::max(1, threads) * kMaxRows * kDepth;
  return static_cast<std::uint64_t>(elements) * sizeof(float);
}

void gemm(const Matmul& mm, int threads, void* scratch) {
  auto* const packed_b = static_cast<float*>(scratch);
  float* const packed_a = packed_b + kMaxCols * kDepth;
  const GemmOperand a = GemmOperand::rows_of(mm.a, mm.transpose_a);
  const GemmOperand b = GemmOperand::columns_of(mm.b, mm.transpose_b);
  const std::int64_t width = HWY_DYNAMIC_DISPATCH(panel_cols)();
  for (std::int64_t j = 0; j < mm.n(); j += kMaxCols) {
    const std::int64_t n = std::min(kMaxCols, mm.n() - j);
    for (std::int64_t p = 0; p < mm.k(); p += kDepth) {
      const std::int64_t depth = std::min(kDepth, mm.k() - p);
      parallel_blocks(threads, n, width, [&](std::int64_t begin, std::int64_t end) {
        HWY_DYNAMIC_DISPATCH(pack_b)
        (b.at(j + begin, p), end - begin, depth, packed_b + begin * depth);
      });
      multiply_strip(mm, a, threads, packed_b, j, n, p, depth, packed_a);
    }
  }
}

}  // namespace llmtrain::kernels::fast
#endif
