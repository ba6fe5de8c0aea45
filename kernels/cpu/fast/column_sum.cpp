#include "kernels/cpu/fast/column_sum.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/column_sum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rows.hpp"
#include "kernels/matmul.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// Adds `count` rows from row i on, one after the other: a sum is loaded and stored once for all.
template <int count, class T>
HWY_INLINE void add_rows(const ColumnSum& op, std::int64_t i, float* sums) {
  const T* x[count];
  for (int r = 0; r < count; ++r) x[r] = op.x.row<T>(i + r);
  for_vectors(op.x.cols(), [&](std::int64_t j, auto lanes) HWY_ATTR {
    V sum = load(sums + j, lanes);
    for (int r = 0; r < count; ++r) sum = hn::Add(sum, load(x[r] + j, lanes));
    store(sum, sums + j, lanes);
  });
}

template <class T>
void sum_rows_as(const ColumnSum& op, std::int64_t begin, std::int64_t end, float* sums) {
  std::fill_n(sums, op.x.cols(), 0.0f);
  std::int64_t i = begin;
  for (; i + 4 <= end; i += 4) add_rows<4, T>(op, i, sums);
  for (; i < end; ++i) add_rows<1, T>(op, i, sums);
}

/// sums[j] = sum of rows [begin, end) in ascending order.
void sum_rows(const ColumnSum& op, std::int64_t begin, std::int64_t end, float* sums) {
  with_fast_type(op.x.dtype, [&]<class T>() { sum_rows_as<T>(op, begin, end, sums); });
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(sum_rows);

namespace {

void column_sum(const KernelCtx& ctx, const ColumnSum& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const std::int64_t rows = op.x.rows();
  const std::int64_t cols = op.x.cols();
  auto* const partial = workspace.as<float>();
  parallel_blocks(ctx.threads, rows, kRowsPerBlock, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(sum_rows)(op, begin, end, partial + begin / kRowsPerBlock * cols);
  });
  join_row_blocks(ctx.threads, num_row_blocks(rows), cols, partial, op.out.as<float>());
}

}  // namespace

void add_column_sum_row(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ColumnSum, column_sum>());
}

}  // namespace llmtrain::kernels::fast
#endif
