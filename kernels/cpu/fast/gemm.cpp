// The product in five loops around a kernel on registers (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008): blocks of b and a are copied into panels that the
// kernel reads from end to end, whatever dtypes, strides and transposes they come with.
//
// Threads share nothing but the operands: each makes a part of c and packs for itself what that
// takes. On processors whose cores do not share a cache, what one packs for another costs more than
// to pack it twice.
#include "kernels/cpu/fast/gemm.hpp"

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/gemm_blocks.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/matmul_workspace.hpp"

namespace llmtrain::kernels::fast {

namespace {

// The memory holds floats; a kernel that packs narrower elements packs as many bytes.
constexpr std::int64_t kFloat = sizeof(float);
/// Bytes of a packed piece of b, and of all with the bias of its columns.
constexpr std::int64_t kPackedColumns = kGemmCols * kGemmDepth * kFloat;
constexpr std::int64_t kPackedPiece = kPackedColumns + kGemmCols * kFloat;

constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

/// `count` in as few pieces of at most `longest` as possible, equal but for a multiple of `unit`.
std::int64_t equal_pieces(std::int64_t count, std::int64_t longest, std::int64_t unit) {
  const std::int64_t pieces = ceil_div(count, longest);
  return std::min(longest, ceil_div(ceil_div(count, pieces), unit) * unit);
}

/// A block of b that is packed as a whole, and the columns of c that it counts for: columns
/// [j, j + cols) and terms [p, p + depth) of the product.
struct Piece {
  std::int64_t j, cols, p, depth;
};

/// The memory of one thread.
struct Memory {
  std::byte* packed_b;  // the columns of a piece, then their bias
  std::byte* packed_a;  // rows of a task
  std::byte* whole_a;   // or all rows and terms, if there is room
  float* sums;          // rows of kGemmCols elements
};

/// Rows [i, i + rows) of a product, by one thread.
class Blocks {
 public:
  Blocks(const Matmul& mm, const GemmKernel& kernel, const Memory& memory, std::int64_t i,
         std::int64_t rows)
      : mm_(mm), kernel_(kernel), memory_(memory), i_(i), rows_(rows) {}

  void run() const {
    const std::int64_t cols = equal_pieces(mm_.n(), kGemmCols, 32);
    const std::int64_t depth = equal_pieces(mm_.k(), kernel_.max_depth, 8);
    const std::int64_t height = equal_pieces(rows_, kGemmRows, kernel_.panel_rows);
    for (std::int64_t j = 0; j < mm_.n(); j += cols) {
      for (std::int64_t p = 0; p < mm_.k(); p += depth) {
        const Piece piece{j, std::min(cols, mm_.n() - j), p, std::min(depth, mm_.k() - p)};
        pack(piece);
        for (std::int64_t row = 0; row < rows_; row += height) {
          multiply(piece, row, std::min(height, rows_ - row));
        }
      }
    }
  }

 private:
  float* bias() const { return reinterpret_cast<float*>(memory_.packed_b + kPackedColumns); }
  void pack(const Piece& piece) const;
  const std::byte* packed_rows(const Piece& piece, std::int64_t row, std::int64_t rows) const;
  void multiply(const Piece& piece, std::int64_t row, std::int64_t rows) const;
  void set_target(const Piece& piece, std::int64_t row, GemmBlock& block) const;

  const Matmul& mm_;
  const GemmKernel& kernel_;
  const Memory& memory_;
  std::int64_t i_, rows_;
};

void Blocks::pack(const Piece& piece) const {
  const GemmOperand b = GemmOperand::columns_of(mm_.b, mm_.transpose_b);
  kernel_.pack_columns(b.at(piece.j, piece.p), piece.cols, piece.depth, memory_.packed_b);
  if (!mm_.bias.defined()) return;
  with_fast_type(mm_.bias.dtype, [&]<class T>() {
    for (std::int64_t e = 0; e < piece.cols; ++e) {
      bias()[e] = widen(mm_.bias.as<T>()[piece.j + e]);
    }
  });
}

/// Rows [row, row + rows) of a and the terms of a piece.
const std::byte* Blocks::packed_rows(const Piece& piece, std::int64_t row,
                                     std::int64_t rows) const {
  const bool kept = memory_.whole_a != nullptr;
  const std::int64_t padded = ceil_div(rows, kernel_.panel_rows) * kernel_.panel_rows;
  std::byte* const to =
      kept ? memory_.whole_a + kernel_.bytes(row, mm_.k()) + kernel_.bytes(padded, piece.p)
           : memory_.packed_a;
  if (kept && piece.j > 0) return to;
  const GemmOperand a = GemmOperand::rows_of(mm_.a, mm_.transpose_a);
  kernel_.pack_rows(a.at(i_ + row, piece.p), rows, piece.depth, to);
  return to;
}

void Blocks::multiply(const Piece& piece, std::int64_t row, std::int64_t rows) const {
  GemmBlock block;
  block.rows = rows;
  block.cols = piece.cols;
  block.depth = kernel_.packed_depth(piece.depth);
  block.a = packed_rows(piece, row, rows);
  block.b = memory_.packed_b;
  const bool biased = mm_.bias.defined() && piece.p + piece.depth == mm_.k();
  block.bias = biased ? bias() : nullptr;
  set_target(piece, row, block);
  kernel_.multiply(block);
}

/// Where the sums of a block's rows go: added up in c, or, when c is of half the width, in FP32
/// beside it until the last.
void Blocks::set_target(const Piece& piece, std::int64_t row, GemmBlock& block) const {
  const bool narrow = mm_.c.dtype != DType::f32;
  const bool last = piece.p + piece.depth == mm_.k();
  float* const sums = memory_.sums + row * kGemmCols;
  if (narrow && !last) {
    block.to = sums;
    block.to_dtype = DType::f32;
    block.to_stride = kGemmCols;
    block.add_to = piece.p > 0;
    return;
  }
  const auto offset = static_cast<std::uint64_t>((i_ + row) * mm_.c.row_stride + piece.j);
  block.to = mm_.c.as<std::byte>() + offset * size_of(mm_.c.dtype);
  block.to_dtype = mm_.c.dtype;
  block.to_stride = mm_.c.row_stride;
  block.add_to = mm_.accumulate || (piece.p > 0 && !narrow);
  if (narrow && piece.p > 0) {
    block.from = sums;
    block.from_stride = kGemmCols;
  }
}

/// Elements [row, row + rows) x [col, col + cols) of a matrix.
View block_of(const View& view, std::int64_t row, std::int64_t rows, std::int64_t col,
              std::int64_t cols) {
  const auto offset = static_cast<std::uint64_t>(row * view.row_stride + col);
  return {view.as<std::byte>() + offset * size_of(view.dtype),
          view.dtype,
          {rows, cols},
          view.row_stride};
}

/// What makes part `part` of c.
Matmul part_of(const Matmul& mm, const MatmulSplit& split, int part) {
  const auto [row, rows] = split.rows(mm.m(), part);
  const auto [col, cols] = split.cols(mm.n(), part);
  Matmul some = mm;
  some.a =
      mm.transpose_a ? block_of(mm.a, 0, mm.k(), row, rows) : block_of(mm.a, row, rows, 0, mm.k());
  some.b =
      mm.transpose_b ? block_of(mm.b, col, cols, 0, mm.k()) : block_of(mm.b, 0, mm.k(), col, cols);
  some.c = block_of(mm.c, row, rows, col, cols);
  if (mm.bias.defined()) some.bias = block_of(mm.bias, 0, 1, col, cols);
  return some;
}

void multiply_part(const Matmul& part, const GemmKernel& kernel, const MatmulWorkspace& layout,
                   std::byte* bytes) {
  const Memory memory{
      .packed_b = bytes,
      .packed_a = bytes + kPackedPiece,
      .whole_a = layout.packs_a_once ? bytes + layout.packed_a : nullptr,
      .sums = reinterpret_cast<float*>(bytes + layout.sums),
  };
  const std::int64_t rows =
      part.c.dtype == DType::f32 ? part.m() : std::min(part.m(), kGemmSumRows);
  for (std::int64_t i = 0; i < part.m(); i += rows) {
    Blocks(part, kernel, memory, i, std::min(rows, part.m() - i)).run();
  }
}

const GemmKernel& kernel_for(const Matmul& mm) {
  const GemmKernel* const narrow = mm.a.dtype == DType::bf16 ? gemm_bf16_kernel() : nullptr;
  return narrow == nullptr ? gemm_fp32_kernel() : *narrow;
}

}  // namespace

bool gemm_multiplies_bf16() { return gemm_bf16_kernel() != nullptr; }

void gemm(const Matmul& mm, int threads, void* workspace) {
  const GemmKernel& kernel = kernel_for(mm);
  const MatmulWorkspace layout = matmul_workspace(mm, threads);
  const int parts = layout.split.parts();
  parallel_blocks(parts, parts, 1, [&](std::int64_t p, std::int64_t) {
    multiply_part(
        part_of(mm, layout.split, static_cast<int>(p)), kernel, layout,
        static_cast<std::byte*>(workspace) + static_cast<std::uint64_t>(p) * layout.part_bytes);
  });
}

}  // namespace llmtrain::kernels::fast
