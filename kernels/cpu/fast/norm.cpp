#include "kernels/norm.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/norm.cpp"
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/column_sum.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// Sum over a row of term(offset, lanes), whose lanes beyond the row must be zero. Four running
/// sums hide the latency of an addition.
template <class Term>
HWY_INLINE float sum_of_row(std::int64_t cols, const Term& term) {
  V sums[4] = {constant(0), constant(0), constant(0), constant(0)};
  std::int64_t j = 0;
  for (; j + 4 * kLanes <= cols; j += 4 * kLanes) {
    sums[0] = hn::Add(sums[0], term(j, Full{}));
    sums[1] = hn::Add(sums[1], term(j + kLanes, Full{}));
    sums[2] = hn::Add(sums[2], term(j + 2 * kLanes, Full{}));
    sums[3] = hn::Add(sums[3], term(j + 3 * kLanes, Full{}));
  }
  for_vectors(cols - j, [&](std::int64_t i, auto lanes)
                            HWY_ATTR { sums[0] = hn::Add(sums[0], term(j + i, lanes)); });
  return sum_of_lanes(hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3])));
}

template <class T, class W>
void forward_row(const NormForward& op, std::int64_t i) {
  const NormRows rows = op.norms();
  const std::int64_t cols = rows.width;
  const auto width = static_cast<float>(cols);
  const T* s = rows.at<T>(op.x, i);
  if (op.residual.defined()) {
    const T* x = s;
    const T* residual = op.residual.as<T>() + i * cols;
    T* sum = op.sum.as<T>() + i * cols;
    for_vectors(cols, [&](std::int64_t j, auto lanes) HWY_ATTR {
      store(hn::Add(load(x + j, lanes), load(residual + j, lanes)), sum + j, lanes);
    });
    s = sum;
  }
  float mean = 0;
  if (op.kind == NormKind::layer_norm) {
    mean =
        sum_of_row(cols, [&](std::int64_t j, auto lanes) HWY_ATTR { return load(s + j, lanes); }) /
        width;
    op.mean.as<float>()[i] = mean;
  }
  const V centre = constant(mean);
  const float square = sum_of_row(cols, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const V d = keep(hn::Sub(load(s + j, lanes), centre), lanes);
    return hn::Mul(d, d);
  });
  const float rstd = 1 / std::sqrt(square / width + static_cast<float>(op.eps));
  op.rstd.as<float>()[i] = rstd;
  const V scale = constant(rstd);
  const V offset = constant(op.weight_offset);
  const W* weight = op.weight.as<W>();
  const W* bias = op.bias.as<W>();
  T* y = rows.at<T>(op.y, i);
  for_vectors(cols, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const V n = hn::Mul(hn::Sub(load(s + j, lanes), centre), scale);
    V value = hn::Mul(n, hn::Add(offset, load(weight + j, lanes)));
    if (bias != nullptr) value = hn::Add(value, load(bias + j, lanes));
    store(value, y + j, lanes);
  });
}

/// With n = (s - mean) rstd and g = dy weight: ds = rstd (g - mean(g) - n mean(g n)), without
/// mean(g) for rms_norm.
template <class T, class W>
void input_grad_row(const NormBackward& op, std::int64_t i) {
  const NormRows rows = op.norms();
  const std::int64_t cols = rows.width;
  const T* dy = rows.at<T>(op.dy, i);
  const T* s = rows.at<T>(op.s, i);
  const T* dsum = op.dsum.defined() ? op.dsum.as<T>() + i * cols : nullptr;
  const W* weight = op.weight.as<W>();
  T* dx = rows.at<T>(op.dx, i);
  const bool centred = op.kind == NormKind::layer_norm;
  const V mean = constant(centred ? op.mean.as<float>()[i] : 0);
  const V rstd = constant(op.rstd.as<float>()[i]);
  const V offset = constant(op.weight_offset);
  const auto g_at = [&](std::int64_t j, auto lanes) HWY_ATTR {
    return hn::Mul(load(dy + j, lanes), hn::Add(offset, load(weight + j, lanes)));
  };
  const auto n_at = [&](std::int64_t j, auto lanes)
                        HWY_ATTR { return hn::Mul(hn::Sub(load(s + j, lanes), mean), rstd); };
  // Beyond the row g is zero, so these terms are.
  const float sum_gn = sum_of_row(cols, [&](std::int64_t j, auto lanes) HWY_ATTR {
    return hn::Mul(g_at(j, lanes), n_at(j, lanes));
  });
  const float sum_g = centred ? sum_of_row(cols, g_at) : 0;
  const V mean_g = constant(sum_g / static_cast<float>(cols));
  const V mean_gn = constant(sum_gn / static_cast<float>(cols));
  for_vectors(cols, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const V centred_g = hn::Sub(g_at(j, lanes), mean_g);
    V ds = hn::Mul(rstd, hn::Sub(centred_g, hn::Mul(n_at(j, lanes), mean_gn)));
    if (dsum != nullptr) ds = hn::Add(ds, load(dsum + j, lanes));
    store(ds, dx + j, lanes);
  });
}

/// Adds `count` rows from row i on, one after the other: a sum is loaded and stored once for all.
template <int count, class T>
HWY_INLINE void add_weight_grad(const NormBackward& op, std::int64_t i, float* weight,
                                float* bias) {
  const NormRows rows = op.norms();
  const T* dy[count];
  const T* s[count];
  V mean[count];
  V rstd[count];
  for (int r = 0; r < count; ++r) {
    dy[r] = rows.at<T>(op.dy, i + r);
    s[r] = rows.at<T>(op.s, i + r);
    mean[r] = constant(op.kind == NormKind::layer_norm ? op.mean.as<float>()[i + r] : 0);
    rstd[r] = constant(op.rstd.as<float>()[i + r]);
  }
  for_vectors(rows.width, [&](std::int64_t j, auto lanes) HWY_ATTR {
    V weight_sum = load(weight + j, lanes);
    V bias_sum = bias != nullptr ? load(bias + j, lanes) : constant(0);
    for (int r = 0; r < count; ++r) {
      const V d = load(dy[r] + j, lanes);
      const V n = hn::Mul(hn::Sub(load(s[r] + j, lanes), mean[r]), rstd[r]);
      weight_sum = hn::Add(weight_sum, hn::Mul(d, n));
      bias_sum = hn::Add(bias_sum, d);
    }
    store(weight_sum, weight + j, lanes);
    if (bias != nullptr) store(bias_sum, bias + j, lanes);
  });
}

template <class T>
void weight_grad_as(const NormBackward& op, std::int64_t begin, std::int64_t end, float* weight,
                    float* bias) {
  std::fill_n(weight, op.norms().width, 0.0f);
  if (bias != nullptr) std::fill_n(bias, op.norms().width, 0.0f);
  std::int64_t i = begin;
  for (; i + 4 <= end; i += 4) add_weight_grad<4, T>(op, i, weight, bias);
  for (; i < end; ++i) add_weight_grad<1, T>(op, i, weight, bias);
}

void forward(const NormForward& op, std::int64_t begin, std::int64_t end) {
  const auto rows = [&]<class T, class W>() {
    for (std::int64_t i = begin; i < end; ++i) forward_row<T, W>(op, i);
  };
  with_fast_type(op.x.dtype, [&]<class T>() {
    op.weight.dtype == DType::f32 ? rows.template operator()<T, float>()
                                  : rows.template operator()<T, T>();
  });
}

/// Sums of rows [begin, end) in ascending order, without the bias's where `bias` is null; then the
/// gradients of these rows, whose dy and s are in the cache.
void backward(const NormBackward& op, std::int64_t begin, std::int64_t end, float* weight,
              float* bias) {
  const auto rows = [&]<class T, class W>() {
    for (std::int64_t i = begin; i < end; ++i) input_grad_row<T, W>(op, i);
  };
  with_fast_type(op.dy.dtype, [&]<class T>() {
    weight_grad_as<T>(op, begin, end, weight, bias);
    op.weight.dtype == DType::f32 ? rows.template operator()<T, float>()
                                  : rows.template operator()<T, T>();
  });
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

namespace {

/// Rows of a parallel block: enough elements to hide a thread's start.
std::int64_t rows_per_block(std::int64_t cols) { return std::max<std::int64_t>(1, 16384 / cols); }

void run_forward(const KernelCtx& ctx, const NormForward& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.norms().count(op.x), rows_per_block(op.norms().width),
                  [&](std::int64_t begin, std::int64_t end) {
                    HWY_DYNAMIC_DISPATCH(forward)(op, begin, end);
                  });
}

void run_backward(const KernelCtx& ctx, const NormBackward& op, const View& workspace) {
  if (op.dy.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const std::int64_t rows = op.norms().count(op.dy);
  const std::int64_t cols = op.norms().width;
  const std::int64_t blocks = op.row_blocks(), per_block = op.rows_per_block();
  auto* const weight = workspace.as<float>();
  float* const bias = op.dbias.defined() ? weight + blocks * cols : nullptr;
  parallel_blocks(ctx.threads, rows, per_block, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t offset = begin / per_block * cols;
    HWY_DYNAMIC_DISPATCH(backward)
    (op, begin, end, weight + offset, bias == nullptr ? nullptr : bias + offset);
  });
  join_row_blocks(ctx.threads, blocks, cols, weight, op.dweight.as<float>());
  if (bias != nullptr) {
    join_row_blocks(ctx.threads, blocks, cols, bias, op.dbias.as<float>());
  }
}

}  // namespace

void add_norm_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<NormForward, run_forward>());
  rows.push_back(row_of<NormBackward, run_backward>());
}

}  // namespace llmtrain::kernels::fast
#endif
