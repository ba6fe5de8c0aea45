// The product in five loops around a kernel on registers (Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008): blocks of b and a are copied into panels that the
// kernel reads from end to end, whatever dtypes, strides and transposes they come with.
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
constexpr std::int64_t kPackedRows = kGemmRows * kGemmDepth * kFloat;

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

/// The product's pieces, those of the same columns one after the other.
class Pieces {
 public:
  Pieces(const Matmul& mm, std::int64_t max_depth)
      : n_(mm.n()),
        k_(mm.k()),
        cols_(equal_pieces(n_, kGemmCols, 32)),
        depth_(equal_pieces(k_, max_depth, 8)),
        of_columns_(ceil_div(k_, depth_)) {}

  std::int64_t count() const { return ceil_div(n_, cols_) * of_columns_; }
  std::int64_t cols() const { return cols_; }  ///< of all pieces but the last
  Piece operator[](std::int64_t piece) const {
    const std::int64_t j = piece / of_columns_ * cols_, p = piece % of_columns_ * depth_;
    return {j, std::min(cols_, n_ - j), p, std::min(depth_, k_ - p)};
  }

 private:
  std::int64_t n_, k_, cols_, depth_, of_columns_;
};

/// The rows of c and the columns of a piece in tasks that are equal but for one panel; rows of a
/// task fit in a block of a. A task may have no columns in a last, narrower piece.
class Grid {
 public:
  Grid(const GemmKernel& kernel, std::int64_t rows, std::int64_t cols, int threads)
      : rows_(rows),
        panel_rows_(kernel.panel_rows),
        panel_cols_(kernel.panel_cols),
        row_panels_(ceil_div(rows, panel_rows_)) {
    const std::int64_t blocks = ceil_div(row_panels_, kGemmRows / panel_rows_);
    row_tasks_ = std::min(row_panels_, ceil_div(blocks, threads) * threads);
    // Few rows: threads share the columns too.
    col_tasks_ = std::min(ceil_div(cols, panel_cols_), ceil_div(threads, row_tasks_));
  }
  std::int64_t count() const { return row_tasks_ * col_tasks_; }
  bool shares_rows() const { return col_tasks_ > 1; }

  struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };
  Range rows(std::int64_t task) const {
    const std::int64_t t = task / col_tasks_;
    return {row_begin(t), row_begin(t + 1)};
  }
  Range cols(std::int64_t task, std::int64_t of) const {
    return share_of(of, task % col_tasks_, col_tasks_);
  }
  /// The tasks before the next one that has other rows.
  std::int64_t end_of_rows(std::int64_t task) const { return (task / col_tasks_ + 1) * col_tasks_; }

  /// Share t of `parts` of `cols` columns, in whole panels.
  Range share_of(std::int64_t cols, std::int64_t t, std::int64_t parts) const {
    const std::int64_t panels = ceil_div(cols, panel_cols_);
    return {std::min(cols, panels * t / parts * panel_cols_),
            std::min(cols, panels * (t + 1) / parts * panel_cols_)};
  }

 private:
  std::int64_t row_begin(std::int64_t t) const {
    return std::min(rows_, row_panels_ * t / row_tasks_ * panel_rows_);
  }
  std::int64_t rows_, panel_rows_, panel_cols_, row_panels_, row_tasks_, col_tasks_;
};

/// The memory of one call.
struct Memory {
  std::byte* packed_b;  // kPackedPiece for each piece in work: its columns, and their bias
  std::byte* packed_a;  // kPackedRows per thread
  std::byte* whole_a;   // or all rows and terms, if there is room
  float* sums;          // rows of kGemmCols elements
};

/// Rows [i, i + rows) of the product. Threads take its tasks in one order through all pieces: while
/// some multiply with one piece, the next one is packed, and none waits until all are done with a
/// piece.
class Pipeline {
 public:
  Pipeline(const Matmul& mm, const GemmKernel& kernel, int threads, const Memory& memory,
           std::int64_t i, std::int64_t rows)
      : mm_(mm),
        kernel_(kernel),
        threads_(threads),
        memory_(memory),
        i_(i),
        pieces_(mm, kernel.max_depth),
        grid_(kernel, rows, pieces_.cols(), threads),
        packs_(2 * threads),
        lead_(threads == 1 ? grid_.count() : grid_.count() / 2) {}

  void run() {
    parallel_in_order(
        threads_, packs_ + pieces_.count() * round(),
        [&](int slot, std::int64_t task, const TaskOrder& order) { run_task(slot, task, order); });
  }

 private:
  // The order: packs of piece 0; then for each piece `lead_` of its products, the packs of the next
  // piece, and the other products.
  std::int64_t round() const { return grid_.count() + packs_; }
  std::int64_t round_begin(std::int64_t piece) const { return packs_ + piece * round(); }
  std::int64_t packs_end(std::int64_t piece) const {
    return piece == 0 ? packs_ : round_begin(piece - 1) + lead_ + packs_;
  }
  /// Place in the order of what comes behind product `product` of a piece.
  std::int64_t product_end(std::int64_t piece, std::int64_t product) const {
    return round_begin(piece) + product + (product > lead_ ? packs_ : 0);
  }

  void run_task(int slot, std::int64_t task, const TaskOrder& order) {
    if (task < packs_) return pack(0, task);
    const std::int64_t piece = (task - packs_) / round(), step = (task - packs_) % round();
    if (step >= lead_ && step < lead_ + packs_) {
      if (piece + 1 == pieces_.count()) return;
      if (piece > 0) order.wait_for(product_end(piece - 1, grid_.count()), slot);
      return pack(piece + 1, step - lead_);
    }
    const std::int64_t product = step < lead_ ? step : step - packs_;
    order.wait_for(packs_end(piece), slot);
    // The same rows of c, or of the sums beside it, are another thread's until then.
    if (piece > 0) order.wait_for(product_end(piece - 1, grid_.end_of_rows(product)), slot);
    multiply(slot, piece, product);
  }

  std::byte* packed(std::int64_t piece) const {
    return memory_.packed_b + (threads_ == 1 ? 0 : piece % 2) * kPackedPiece;
  }
  float* bias(std::int64_t piece) const {
    return reinterpret_cast<float*>(packed(piece) + kPackedColumns);
  }
  const std::byte* packed_rows(int slot, const Piece& piece, const Grid::Range& rows) const;

  void pack(std::int64_t number, std::int64_t share) const;
  void multiply(int slot, std::int64_t number, std::int64_t product) const;
  void set_target(const Piece& piece, std::int64_t row, std::int64_t col, GemmBlock& block) const;

  const Matmul& mm_;
  const GemmKernel& kernel_;
  int threads_;
  Memory memory_;
  std::int64_t i_;
  Pieces pieces_;
  Grid grid_;
  std::int64_t packs_, lead_;
};

void Pipeline::pack(std::int64_t number, std::int64_t share) const {
  const Piece piece = pieces_[number];
  const Grid::Range cols = grid_.share_of(piece.cols, share, packs_);
  if (cols.size() <= 0) return;
  const GemmOperand b = GemmOperand::columns_of(mm_.b, mm_.transpose_b);
  kernel_.pack_columns(b.at(piece.j + cols.begin, piece.p), cols.size(), piece.depth,
                       packed(number) + kernel_.bytes(cols.begin, piece.depth));
  if (!mm_.bias.defined()) return;
  with_fast_type(mm_.bias.dtype, [&]<class T>() {
    for (std::int64_t e = cols.begin; e < cols.end; ++e) {
      bias(number)[e] = widen(mm_.bias.as<T>()[piece.j + e]);
    }
  });
}

/// Rows of a, as many as a task has, and the terms of a piece. Tasks of the same rows follow one
/// another, so that what the first one packed is there for those with other columns.
const std::byte* Pipeline::packed_rows(int slot, const Piece& piece,
                                       const Grid::Range& rows) const {
  const bool kept = memory_.whole_a != nullptr && !grid_.shares_rows();
  const std::int64_t padded = ceil_div(rows.size(), kernel_.panel_rows) * kernel_.panel_rows;
  std::byte* const to =
      kept ? memory_.whole_a + kernel_.bytes(rows.begin, mm_.k()) + kernel_.bytes(padded, piece.p)
           : memory_.packed_a + slot * kPackedRows;
  if (kept && piece.j > 0) return to;
  const GemmOperand a = GemmOperand::rows_of(mm_.a, mm_.transpose_a);
  kernel_.pack_rows(a.at(i_ + rows.begin, piece.p), rows.size(), piece.depth, to);
  return to;
}

void Pipeline::multiply(int slot, std::int64_t number, std::int64_t product) const {
  const Piece piece = pieces_[number];
  const Grid::Range rows = grid_.rows(product), cols = grid_.cols(product, piece.cols);
  if (cols.size() <= 0) return;
  GemmBlock block;
  block.rows = rows.size();
  block.cols = cols.size();
  block.depth = kernel_.packed_depth(piece.depth);
  block.a = packed_rows(slot, piece, rows);
  block.b = packed(number) + kernel_.bytes(cols.begin, piece.depth);
  const bool biased = mm_.bias.defined() && piece.p + piece.depth == mm_.k();
  block.bias = biased ? bias(number) + cols.begin : nullptr;
  set_target(piece, rows.begin, cols.begin, block);
  kernel_.multiply(block);
}

/// Where the sums of a block at (row, col) go: added up in c, or, when c is of half the width, in
/// FP32 beside it until the last.
void Pipeline::set_target(const Piece& piece, std::int64_t row, std::int64_t col,
                          GemmBlock& block) const {
  const bool narrow = mm_.c.dtype != DType::f32;
  const bool last = piece.p + piece.depth == mm_.k();
  float* const sums = memory_.sums + row * kGemmCols + col;
  if (narrow && !last) {
    block.to = sums;
    block.to_dtype = DType::f32;
    block.to_stride = kGemmCols;
    block.add_to = piece.p > 0;
    return;
  }
  const auto offset = static_cast<std::uint64_t>((i_ + row) * mm_.c.row_stride + piece.j + col);
  block.to = mm_.c.as<std::byte>() + offset * size_of(mm_.c.dtype);
  block.to_dtype = mm_.c.dtype;
  block.to_stride = mm_.c.row_stride;
  block.add_to = mm_.accumulate || (piece.p > 0 && !narrow);
  if (narrow && piece.p > 0) {
    block.from = sums;
    block.from_stride = kGemmCols;
  }
}

const GemmKernel& kernel_for(const Matmul& mm) {
  const GemmKernel* const narrow = mm.a.dtype == DType::bf16 ? gemm_bf16_kernel() : nullptr;
  return narrow == nullptr ? gemm_fp32_kernel() : *narrow;
}

}  // namespace

bool gemm_multiplies_bf16() { return gemm_bf16_kernel() != nullptr; }

void gemm(const Matmul& mm, int threads, void* workspace) {
  threads = std::max(1, threads);
  const GemmKernel& kernel = kernel_for(mm);
  const MatmulWorkspace layout = matmul_workspace(mm, threads);
  auto* const bytes = static_cast<std::byte*>(workspace);
  Memory memory;
  memory.packed_b = bytes;
  memory.packed_a = bytes + (threads == 1 ? 1 : 2) * kPackedPiece;
  memory.sums = reinterpret_cast<float*>(bytes + layout.sums);
  memory.whole_a = layout.packs_a_once ? bytes + layout.packed_a : nullptr;
  const std::int64_t rows = mm.c.dtype == DType::f32 ? mm.m() : std::min(mm.m(), kGemmSumRows);
  for (std::int64_t i = 0; i < mm.m(); i += rows) {
    Pipeline(mm, kernel, threads, memory, i, std::min(rows, mm.m() - i)).run();
  }
}

}  // namespace llmtrain::kernels::fast
