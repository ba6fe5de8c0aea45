#pragma once
/// Pieces of rows: the unit of work of element-wise kernels.

#include <initializer_list>

#include "kernels/cpu/parallel.hpp"
#include "kernels/kernel.hpp"

namespace llmtrain::kernels::fast {

/// `count` elements of one row, from column `col` on.
struct Segment {
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int64_t count = 0;

  template <class T>
  T* of(const View& view) const {
    return view.row<T>(row) + col;
  }
};

/// Elements of one block of parallel work: enough to hide a thread's start, small enough to
/// balance.
inline constexpr std::int64_t kElementsPerBlock = 1 << 15;

/// Elements of one pass of an update: all its operands fit in the innermost cache.
inline constexpr std::int64_t kPass = 1024;

/// Calls f(Segment) for whole rows, several to a block.
template <class F>
void for_row_segments(int threads, const View& shape, const F& f) {
  const std::int64_t cols = shape.cols();
  const std::int64_t rows_per_block =
      std::max<std::int64_t>(1, kElementsPerBlock / std::max<std::int64_t>(1, cols));
  parallel_blocks(threads, shape.rows(), rows_per_block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) f(Segment{row, 0, cols});
  });
}

/// Calls f(Segment) for pieces that together cover the operands, which agree in rows and columns;
/// absent ones are ignored. Operands without gaps are one long row.
template <class F>
void for_segments(int threads, std::initializer_list<const View*> operands, const F& f) {
  const View& first = **operands.begin();
  const bool one_row = std::all_of(operands.begin(), operands.end(), [](const View* view) {
    return !view->defined() || view->contiguous();
  });
  if (!one_row) return for_row_segments(threads, first, f);
  parallel_blocks(threads, first.numel(), kElementsPerBlock,
                  [&](std::int64_t begin, std::int64_t end) {
                    f(Segment{0, begin, end - begin});
                  });
}

}  // namespace llmtrain::kernels::fast
