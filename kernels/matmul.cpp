#include "kernels/matmul.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/matmul_workspace.hpp"
#include "kernels/operands.hpp"

namespace llmtrain::kernels {

void Matmul::check() const {
  const Operands operands(name);
  operands.strided("a", a, transpose_a ? k() : m(), transpose_a ? m() : k(), kComputeDTypes);
  operands.strided("b", b, transpose_b ? n() : k(), transpose_b ? k() : n(), {a.dtype});
  if (is_half_width(a.dtype)) {
    operands.strided("c", c, m(), n(), {a.dtype, DType::f32});
  } else {
    operands.strided("c", c, m(), n(), {a.dtype});
  }
  operands.distinct("c", c, "a", a);
  operands.distinct("c", c, "b", b);
  if (bias.defined()) {
    operands.expects(!accumulate, "no bias when it accumulates");
    operands.dense("bias", bias, n(), {c.dtype, DType::f32});
  }
  if (epilogue == ProductEpilogue::none) return;
  operands.strided("pre", pre, m(), n(), {c.dtype});
  operands.distinct("c", c, "pre", pre);
  operands.expects(!accumulate, "no epilogue when it accumulates");
  operands.expects(epilogue == ProductEpilogue::activate || !bias.defined(),
                   "no bias before a derivative");
}

Cost Matmul::cost() const {
  Cost cost = memory_cost({a, b, bias, accumulate ? c : View{},
                           epilogue == ProductEpilogue::differentiate ? pre : View{}},
                          {c, epilogue == ProductEpilogue::activate ? pre : View{}});
  cost.flops = 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k());
  return cost;
}

namespace {

constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

/// Part `index` of `parts` of `whole` elements, cut at multiples of `unit`.
MatmulSplit::Range part_range(std::int64_t whole, std::int64_t unit, int parts, int index) {
  const std::int64_t units = ceil_div(whole, unit);
  const std::int64_t begin = std::min(whole, units * index / parts * unit);
  return {begin, std::min(whole, units * (index + 1) / parts * unit) - begin};
}

/// Widths of panels, about: parts of fewer rows or columns would be mostly filled up.
constexpr std::int64_t kRowUnit = 12, kColUnit = 32;

/// The grid of at most `threads` parts in which a part packs least.
MatmulSplit split_of(std::int64_t m, std::int64_t n, int threads) {
  const std::int64_t row_units = ceil_div(m, kRowUnit), col_units = ceil_div(n, kColUnit);
  for (int parts = threads; parts > 1; --parts) {
    MatmulSplit best{.row_parts = 0};
    double least = 0;
    for (int rows = 1; rows <= parts; ++rows) {
      const int cols = parts / rows;
      if (parts % rows != 0 || rows > row_units || cols > col_units) continue;
      const double packed = static_cast<double>(m) / rows + static_cast<double>(n) / cols;
      if (best.row_parts > 0 && packed >= least) continue;
      best = {rows, cols};
      least = packed;
    }
    if (best.row_parts > 0) return best;
  }
  return {};
}

/// Panels of packed rows are full: kGemmRows is a multiple of their rows.
std::int64_t round_up_rows(std::int64_t rows) { return ceil_div(rows, kGemmRows) * kGemmRows; }

}  // namespace

MatmulSplit::Range MatmulSplit::rows(std::int64_t m, int part) const {
  return part_range(m, kRowUnit, row_parts, part / col_parts);
}

MatmulSplit::Range MatmulSplit::cols(std::int64_t n, int part) const {
  return part_range(n, kColUnit, col_parts, part % col_parts);
}

MatmulWorkspace matmul_workspace(const Matmul& mm, int threads) {
  MatmulWorkspace layout{.split = split_of(mm.m(), mm.n(), threads)};
  if (mm.a.dtype == DType::f64) return layout;
  // Of the largest part.
  const std::int64_t m = ceil_div(ceil_div(mm.m(), kRowUnit), layout.split.row_parts) * kRowUnit;
  const std::int64_t n = ceil_div(ceil_div(mm.n(), kColUnit), layout.split.col_parts) * kColUnit;
  constexpr std::int64_t kPiece = kGemmCols * (kGemmDepth + 1);  // packed columns, and their bias
  constexpr std::int64_t kRows = kGemmRows * kGemmDepth;
  layout.sums = layout.part_bytes = static_cast<std::uint64_t>(kPiece + kRows) * sizeof(float);
  const bool narrow = is_half_width(mm.c.dtype);
  const std::int64_t rows = narrow ? std::min(m, kGemmSumRows) : m;
  if (narrow && mm.k() > kGemmDepth) {
    layout.part_bytes += static_cast<std::uint64_t>(rows * kGemmCols) * sizeof(float);
  }
  const std::int64_t whole_a = round_up_rows(rows) * mm.k();
  if (n > kGemmCols && whole_a <= kGemmWholeA) {
    layout.packs_a_once = true;
    layout.packed_a = layout.part_bytes;
    layout.part_bytes += static_cast<std::uint64_t>(whole_a) * sizeof(float);
  }
  return layout;
}

std::uint64_t matmul_workspace_bound(const Matmul& mm, int threads) {
  if (mm.a.dtype == DType::f64) return 0;
  MatmulWorkspace largest = matmul_workspace(mm, 1);
  if (mm.n() > kGemmCols && !largest.packs_a_once) {
    largest.part_bytes += static_cast<std::uint64_t>(kGemmWholeA) * sizeof(float);
  }
  return largest.part_bytes * static_cast<std::uint64_t>(threads);
}

std::uint64_t Matmul::workspace_bytes(int threads) const {
  return matmul_workspace(*this, threads).total_bytes();
}

Matmul without_epilogue(const Matmul& mm) {
  Matmul product = mm;
  if (mm.epilogue == ProductEpilogue::activate) product.c = mm.pre;
  product.epilogue = ProductEpilogue::none;
  product.pre = {};
  return product;
}

void run_epilogue(const KernelCtx& ctx, const Matmul& mm) {
  const auto run = [&](const auto& kernel) { ctx.table->find(kernel.name)(ctx, &kernel, View{}); };
  if (mm.epilogue == ProductEpilogue::activate) {
    run(ActivationForward{.activation = mm.activation, .x = mm.pre, .up = {}, .y = mm.c});
  } else if (mm.epilogue == ProductEpilogue::differentiate) {
    run(ActivationBackward{
        .activation = mm.activation, .x = mm.pre, .up = {}, .dy = mm.c, .dx = mm.c, .dup = {}});
  }
}

void ColumnSum::check() const {
  const Operands operands(name);
  operands.strided("x", x, x.rows(), x.cols(), kComputeDTypes);
  operands.dense("out", out, x.cols(), {sum_dtype(x.dtype)});
}

Cost ColumnSum::cost() const { return memory_cost({x, out}, {out}); }

std::uint64_t ColumnSum::workspace_bytes(int) const {
  return static_cast<std::uint64_t>(num_row_blocks(x.rows()) * x.cols()) * size_of(out.dtype);
}

}  // namespace llmtrain::kernels
