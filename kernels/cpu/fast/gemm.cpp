// The product in five loops around a kernel on registers (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008): blocks of b and a are copied into panels that the
// kernel reads from end to end, whatever dtypes, strides and transposes they come with.
#include "kernels/cpu/fast/gemm.hpp"

#include "kernels/cpu/fast/gemm_blocks.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/matmul_workspace.hpp"

namespace llmtrain::kernels::fast {

namespace {

constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

/// `count` in as few pieces of at most `longest` as possible, equal but for a multiple of `unit`.
std::int64_t equal_pieces(std::int64_t count, std::int64_t longest, std::int64_t unit) {
  const std::int64_t pieces = ceil_div(count, longest);
  return std::min(longest, ceil_div(ceil_div(count, pieces), unit) * unit);
}

/// Rows and columns of c in tasks that are equal but for one panel; rows of a task fit in a block
/// of a.
class Tasks {
 public:
  Tasks(std::int64_t rows, std::int64_t cols, std::int64_t panel_cols, int threads)
      : rows_(rows),
        cols_(cols),
        panel_cols_(panel_cols),
        row_panels_(ceil_div(rows, kPanelRows)),
        col_panels_(ceil_div(cols, panel_cols)) {
    const std::int64_t blocks = ceil_div(row_panels_, kGemmRows / kPanelRows);
    row_tasks_ = std::min(row_panels_, ceil_div(blocks, threads) * threads);
    // Few rows: threads share the columns too.
    col_tasks_ = std::min(col_panels_, ceil_div(threads, row_tasks_));
  }
  std::int64_t count() const { return row_tasks_ * col_tasks_; }
  std::int64_t row(std::int64_t task) const { return row_begin(task / col_tasks_); }
  std::int64_t rows(std::int64_t task) const {
    return row_begin(task / col_tasks_ + 1) - row(task);
  }
  std::int64_t col(std::int64_t task) const { return col_begin(task % col_tasks_); }
  std::int64_t cols(std::int64_t task) const {
    return col_begin(task % col_tasks_ + 1) - col(task);
  }

 private:
  std::int64_t row_begin(std::int64_t t) const {
    return std::min(rows_, row_panels_ * t / row_tasks_ * kPanelRows);
  }
  std::int64_t col_begin(std::int64_t t) const {
    return std::min(cols_, col_panels_ * t / col_tasks_ * panel_cols_);
  }

  std::int64_t rows_, cols_, panel_cols_, row_panels_, col_panels_, row_tasks_, col_tasks_;
};

/// The memory of one call.
struct Memory {
  float* packed_b;
  float* bias;
  float* packed_a;  // kGemmRows * kGemmDepth elements per thread
  float* sums;      // rows of kGemmCols elements
};

/// Rows [i, i + rows) and columns [j, j + cols) of c.
struct Strip {
  std::int64_t i, rows, j, cols;
};

void widen_bias(const View& bias, std::int64_t j, std::int64_t cols, float* to) {
  for (std::int64_t e = 0; e < cols; ++e) {
    to[e] = bias.dtype == DType::bf16 ? to_float(bias.as<bf16>()[j + e]) : bias.as<float>()[j + e];
  }
}

/// Where the sums over [p, p + depth) of a block at (row, col) of the strip go: added up in c, or,
/// when c is bf16, in FP32 beside it until the last.
void set_target(const Matmul& mm, const Memory& memory, const Strip& strip, std::int64_t row,
                std::int64_t col, std::int64_t p, GemmBlock& block) {
  const bool narrow = mm.c.dtype != DType::f32;
  const bool last = p + block.depth == mm.k();
  if (narrow && !last) {
    block.to = memory.sums + row * kGemmCols + col;
    block.to_dtype = DType::f32;
    block.to_stride = kGemmCols;
    block.add_to = p > 0;
    return;
  }
  const auto offset = static_cast<std::uint64_t>((strip.i + row) * mm.c.row_stride + strip.j + col);
  block.to = mm.c.as<std::byte>() + offset * size_of(mm.c.dtype);
  block.to_dtype = mm.c.dtype;
  block.to_stride = mm.c.row_stride;
  block.add_to = mm.accumulate || (p > 0 && !narrow);
  if (narrow && p > 0) {
    block.from = memory.sums + row * kGemmCols + col;
    block.from_stride = kGemmCols;
  }
}

/// The sum over [p, p + depth) for a strip whose columns of b are packed.
void multiply_piece(const Matmul& mm, int threads, const Memory& memory, const Strip& strip,
                    std::int64_t p, std::int64_t depth) {
  const GemmOperand a = GemmOperand::rows_of(mm.a, mm.transpose_a);
  const bool biased = mm.bias.defined() && p + depth == mm.k();
  const Tasks tasks(strip.rows, strip.cols, gemm_panel_cols(), threads);
  parallel_tasks(threads, tasks.count(), [&](int slot, std::int64_t task) {
    const std::int64_t row = tasks.row(task);
    const std::int64_t col = tasks.col(task);
    float* const packed_a = memory.packed_a + slot * kGemmRows * kGemmDepth;
    GemmBlock block;
    block.rows = tasks.rows(task);
    block.cols = tasks.cols(task);
    block.depth = depth;
    block.a = packed_a;
    block.b = memory.packed_b + col * depth;
    block.bias = biased ? memory.bias + col : nullptr;
    set_target(mm, memory, strip, row, col, p, block);
    gemm_pack_rows(a.at(strip.i + row, p), block.rows, depth, packed_a);
    gemm_multiply(block);
  });
}

void multiply_strip(const Matmul& mm, int threads, const Memory& memory, const Strip& strip) {
  const GemmOperand b = GemmOperand::columns_of(mm.b, mm.transpose_b);
  if (mm.bias.defined()) widen_bias(mm.bias, strip.j, strip.cols, memory.bias);
  const std::int64_t width = gemm_panel_cols();
  const std::int64_t share = ceil_div(ceil_div(strip.cols, width), std::max(1, threads)) * width;
  const std::int64_t step = equal_pieces(mm.k(), kGemmDepth, 8);
  for (std::int64_t p = 0; p < mm.k(); p += step) {
    const std::int64_t depth = std::min(step, mm.k() - p);
    parallel_blocks(threads, strip.cols, share, [&](std::int64_t begin, std::int64_t end) {
      gemm_pack_columns(b.at(strip.j + begin, p), end - begin, depth,
                        memory.packed_b + begin * depth);
    });
    multiply_piece(mm, threads, memory, strip, p, depth);
  }
}

}  // namespace

void gemm(const Matmul& mm, int threads, void* workspace) {
  const MatmulWorkspace layout = matmul_workspace(mm, threads);
  Memory memory;
  memory.packed_b = static_cast<float*>(workspace);
  memory.bias = memory.packed_b + kGemmCols * kGemmDepth;
  memory.packed_a = memory.bias + kGemmCols;
  memory.sums = memory.packed_b + layout.sums / sizeof(float);
  const std::int64_t rows = mm.c.dtype == DType::f32 ? mm.m() : std::min(mm.m(), kGemmSumRows);
  const std::int64_t cols = equal_pieces(mm.n(), kGemmCols, 32);
  for (std::int64_t i = 0; i < mm.m(); i += rows) {
    for (std::int64_t j = 0; j < mm.n(); j += cols) {
      multiply_strip(mm, std::max(1, threads), memory,
                     {i, std::min(rows, mm.m() - i), j, std::min(cols, mm.n() - j)});
    }
  }
}

}  // namespace llmtrain::kernels::fast
