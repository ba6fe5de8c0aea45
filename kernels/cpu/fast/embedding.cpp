#include "kernels/cpu/fast/embedding.hpp"

#include <cstring>

#include "kernels/cpu/embedding_ids.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/embedding.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// y += x
template <class X, class Y>
void add_row(const X* x, Y* y, std::int64_t n) {
  for_vectors(n, [&](std::int64_t j, auto lanes) {
    store(hn::Add(load(y + j, lanes), load(x + j, lanes)), y + j, lanes);
  });
}

void add_rows(const EmbeddingForward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t hidden = op.table.cols();
  with_fast_type(op.table.dtype, [&]<class T>() {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t entry = entry_of(op, op.table, i);
      if (entry >= 0) add_row(op.table.row<T>(entry), op.y.as<T>() + i * hidden, hidden);
    }
  });
}

/// Columns [begin, end) of every row.
void add_columns(const EmbeddingBackward& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t hidden = op.dtable.cols();
  with_fast_type(op.dy.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.id.numel(); ++i) {
      const std::int64_t entry = entry_of(op, op.dtable, i);
      if (entry < 0) continue;
      float* sum = op.dtable.row<float>(entry) + begin;
      add_row(op.dy.as<T>() + i * hidden + begin, sum, end - begin);
    }
  });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(add_rows);
HWY_EXPORT(add_columns);

void embedding_forward(const KernelCtx& ctx, const EmbeddingForward& op, const View& workspace) {
  if (op.table.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_ids(op.name, op.id, 0, op.part.end(op.table.rows()));
  constexpr std::int64_t kRows = 16;
  const auto row_bytes = static_cast<std::size_t>(op.table.cols()) * size_of(op.table.dtype);
  const auto* table = op.table.as<std::byte>();
  auto* y = op.y.as<std::byte>();
  parallel_blocks(ctx.threads, op.id.numel(), kRows, [&](std::int64_t begin, std::int64_t end) {
    if (op.accumulate) return HWY_DYNAMIC_DISPATCH(add_rows)(op, begin, end);
    for (std::int64_t i = begin; i < end; ++i) {
      auto* const to = y + static_cast<std::size_t>(i) * row_bytes;
      const std::int64_t entry = entry_of(op, op.table, i);
      if (entry < 0) {
        std::memset(to, 0, row_bytes);
      } else {
        std::memcpy(to, table + static_cast<std::size_t>(entry) * row_bytes, row_bytes);
      }
    }
  });
}

void embedding_backward(const KernelCtx& ctx, const EmbeddingBackward& op, const View& workspace) {
  if (op.dy.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_ids(op.name, op.id, 0, op.part.end(op.dtable.rows()));
  constexpr std::int64_t kColumns = 64;  // four cache lines of FP32
  parallel_blocks(ctx.threads, op.dtable.cols(), kColumns,
                  [&](std::int64_t begin, std::int64_t end) {
                    HWY_DYNAMIC_DISPATCH(add_columns)(op, begin, end);
                  });
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
