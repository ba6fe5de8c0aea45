#include "kernels/scale_rows.hpp"

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/rows.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/scale_rows.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

void scale_rows_of(const ScaleRows& op, std::int64_t begin, std::int64_t end) {
  const F f;
  with_fast_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t p = begin; p < end; ++p) {
      const V w = hn::Set(f, op.weight.as<float>()[p]);
      const T* x = op.x.row<T>(p);
      T* y = op.y.row<T>(p);
      for_vectors(op.x.cols(), [&](std::int64_t j, auto lanes) {
        store(hn::Mul(w, load(x + j, lanes)), y + j, lanes);
      });
    }
  });
}

void scale_rows_backward_of(const ScaleRowsBackward& op, std::int64_t begin, std::int64_t end) {
  const F f;
  with_fast_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t p = begin; p < end; ++p) {
      const V w = hn::Set(f, op.weight.as<float>()[p]);
      const T *x = op.x.row<T>(p), *dy = op.dy.row<T>(p);
      T* dx = op.dx.row<T>(p);
      V sum = hn::Zero(f);
      for_vectors(op.x.cols(), [&](std::int64_t j, auto lanes) {
        const V d = load(dy + j, lanes);
        sum = hn::Add(sum, keep(hn::Mul(d, load(x + j, lanes)), lanes));
        store(hn::Mul(w, d), dx + j, lanes);
      });
      op.dweight.as<float>()[p] = static_cast<float>(sum_of_lanes(sum));
    }
  });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(scale_rows_of);
HWY_EXPORT(scale_rows_backward_of);

namespace {

constexpr std::int64_t kRows = 16;

void scale_rows(const KernelCtx& ctx, const ScaleRows& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.x.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_rows_of)(op, begin, end);
  });
}

void scale_rows_backward(const KernelCtx& ctx, const ScaleRowsBackward& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.x.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(scale_rows_backward_of)(op, begin, end);
  });
}

}  // namespace

void add_scale_rows_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<ScaleRows, scale_rows>());
  rows.push_back(row_of<ScaleRowsBackward, scale_rows_backward>());
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
