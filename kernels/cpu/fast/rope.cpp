#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/attention.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/rope_positions.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/rope.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// One head of one row. Products are rounded before they are added, as in the plain kernel.
template <class T>
HWY_INLINE void turn(const Rope& op, const T* x, T* y, const float* cosine, const float* sine) {
  const std::int64_t half = op.rotary_dim / 2;
  for_vectors(half, [&](std::int64_t i, auto lanes) {
    const V a = load(x + i, lanes);
    const V b = load(x + half + i, lanes);
    const V c = load(cosine + i, lanes);
    V s = load(sine + i, lanes);
    if (op.inverse) s = hn::Neg(s);
    store(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), y + i, lanes);
    store(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), y + half + i, lanes);
  });
  if (x != y) std::copy(x + op.rotary_dim, x + op.head_dim, y + op.rotary_dim);
}

template <class T>
void rope_rows(const Rope& op, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = op.rotary_dim / 2;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t at = op.position.as<std::int32_t>()[i] * half;
    for (std::int64_t column = 0; column < op.x.cols(); column += op.head_dim) {
      turn(op, op.x.row<T>(i) + column, op.y.row<T>(i) + column, op.cosine.as<float>() + at,
           op.sine.as<float>() + at);
    }
  }
}

void rope_rows_of(const Rope& op, std::int64_t begin, std::int64_t end) {
  with_fast_type(op.x.dtype, [&]<class T>() { rope_rows<T>(op, begin, end); });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(rope_rows_of);

void rope(const KernelCtx& ctx, const Rope& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_positions(op.name, op.position, op.cosine);
  constexpr std::int64_t kRows = 16;
  parallel_blocks(ctx.threads, op.x.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(rope_rows_of)(op, begin, end);
  });
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
