#include "kernels/norm.hpp"

#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

/// Element j of a weight or bias, which may be FP32 beside narrower activations.
template <class T>
Wide<T> affine(const View& view, std::int64_t j) {
  if (view.dtype == DType::f32) return view.as<float>()[j];
  return widen(view.as<T>()[j]);
}

template <class T>
Wide<T> mean_of_row(const T* s, std::int64_t hidden) {
  Wide<T> sum = 0;
  for (std::int64_t j = 0; j < hidden; ++j) sum += widen(s[j]);
  return sum / static_cast<Wide<T>>(hidden);
}

template <class T>
Wide<T> mean_square(const T* s, std::int64_t hidden, Wide<T> mean) {
  Wide<T> sum = 0;
  for (std::int64_t j = 0; j < hidden; ++j) sum += (widen(s[j]) - mean) * (widen(s[j]) - mean);
  return sum / static_cast<Wide<T>>(hidden);
}

template <class T>
void forward_row(const NormForward& norm, std::int64_t i) {
  const NormRows rows = norm.norms();
  const std::int64_t hidden = rows.width;
  const T* s = rows.at<T>(norm.x, i);
  if (norm.residual.defined()) {
    const T* residual = norm.residual.as<T>() + i * hidden;
    T* sum = norm.sum.as<T>() + i * hidden;
    for (std::int64_t j = 0; j < hidden; ++j) sum[j] = narrow<T>(widen(s[j]) + widen(residual[j]));
    s = sum;
  }
  Wide<T> mean = 0;
  if (norm.kind == NormKind::layer_norm) {
    mean = mean_of_row(s, hidden);
    norm.mean.as<Wide<T>>()[i] = mean;
  }
  const Wide<T> rstd = 1 / std::sqrt(mean_square(s, hidden, mean) + static_cast<Wide<T>>(norm.eps));
  norm.rstd.as<Wide<T>>()[i] = rstd;
  T* y = rows.at<T>(norm.y, i);
  for (std::int64_t j = 0; j < hidden; ++j) {
    const Wide<T> weight = static_cast<Wide<T>>(norm.weight_offset) + affine<T>(norm.weight, j);
    Wide<T> value = (widen(s[j]) - mean) * rstd * weight;
    if (norm.bias.defined()) value += affine<T>(norm.bias, j);
    y[j] = narrow<T>(value);
  }
}

void forward(const KernelCtx&, const NormForward& norm, const View&) {
  with_type(norm.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < norm.norms().count(norm.x); ++i) forward_row<T>(norm, i);
  });
}

/// With n = (s - mean) rstd and g = dy weight: ds = rstd (g - mean(g) - n mean(g n)), without
/// mean(g) for rms_norm.
template <class T>
void input_grad_row(const NormBackward& grad, std::int64_t i) {
  using W = Wide<T>;
  const NormRows rows = grad.norms();
  const std::int64_t hidden = rows.width;
  const T* dy = rows.at<T>(grad.dy, i);
  const T* s = rows.at<T>(grad.s, i);
  const T* dsum = grad.dsum.defined() ? grad.dsum.as<T>() + i * hidden : nullptr;
  T* dx = rows.at<T>(grad.dx, i);
  const bool centred = grad.kind == NormKind::layer_norm;
  const W mean = centred ? grad.mean.as<W>()[i] : W{0};
  const W rstd = grad.rstd.as<W>()[i];
  const auto g_at = [&](std::int64_t j) {
    return widen(dy[j]) * (static_cast<W>(grad.weight_offset) + affine<T>(grad.weight, j));
  };
  W sum_g = 0;
  W sum_gn = 0;
  for (std::int64_t j = 0; j < hidden; ++j) {
    const W g = g_at(j);
    sum_g += g;
    sum_gn += g * ((widen(s[j]) - mean) * rstd);
  }
  const W mean_g = centred ? sum_g / static_cast<W>(hidden) : W{0};
  const W mean_gn = sum_gn / static_cast<W>(hidden);
  for (std::int64_t j = 0; j < hidden; ++j) {
    const W g = g_at(j);
    const W n = (widen(s[j]) - mean) * rstd;
    const W ds = rstd * (g - mean_g - n * mean_gn);
    dx[j] = narrow<T>(dsum != nullptr ? ds + widen(dsum[j]) : ds);
  }
}

template <class T>
void weight_grad_column(const NormBackward& grad, std::int64_t j) {
  using W = Wide<T>;
  const NormRows rows = grad.norms();
  const std::int64_t count = rows.count(grad.dy), per_block = grad.rows_per_block();
  for (std::int64_t begin = 0; begin < count; begin += per_block) {
    W weight_sum = 0;
    W bias_sum = 0;
    for (std::int64_t i = begin; i < std::min(count, begin + per_block); ++i) {
      const W dy = widen(rows.at<T>(grad.dy, i)[j]);
      const W mean = grad.kind == NormKind::layer_norm ? grad.mean.as<W>()[i] : W{0};
      const W n = (widen(rows.at<T>(grad.s, i)[j]) - mean) * grad.rstd.as<W>()[i];
      weight_sum += dy * n;
      bias_sum += dy;
    }
    grad.dweight.as<W>()[j] += weight_sum;
    if (grad.dbias.defined()) grad.dbias.as<W>()[j] += bias_sum;
  }
}

// The weight's gradient first: dx may take the place of dy.
void backward(const KernelCtx&, const NormBackward& grad, const View&) {
  with_type(grad.dy.dtype, [&]<class T>() {
    for (std::int64_t j = 0; j < grad.norms().width; ++j) weight_grad_column<T>(grad, j);
    for (std::int64_t i = 0; i < grad.norms().count(grad.dy); ++i) input_grad_row<T>(grad, i);
  });
}

}  // namespace

void add_norm_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<NormForward, forward>());
  rows.push_back(row_of<NormBackward, backward>());
}

}  // namespace llmtrain::kernels::reference
