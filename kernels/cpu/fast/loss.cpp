#include "kernels/loss.hpp"

#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/embedding_ids.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/embedding.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/row_statistics.hpp"
#include "kernels/cpu/rows.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/loss.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// v, with -inf in the lanes that `lanes` leaves out: what a maximum may see.
HWY_INLINE V for_maximum(V v, Full) { return v; }
HWY_INLINE V for_maximum(V v, First some) {
  const F f;
  return hn::IfThenElse(hn::FirstN(f, static_cast<std::size_t>(some.count)), v,
                        hn::Set(f, -std::numeric_limits<float>::infinity()));
}

/// A row of logits of type T as the loss reads it: capped, or as it is.
template <class T, bool kCapped>
struct Logits {
  const T* data;
  float cap;
  template <class L>
  HWY_INLINE V at(std::int64_t j, L lanes) const {
    const V z = load(data + j, lanes);
    if constexpr (kCapped) return soft_cap(z, cap);
    return z;
  }
  float operator[](std::int64_t j) const {
    const float z = widen(data[j]);
    return kCapped ? cap * std::tanh(z / cap) : z;
  }
};

/// Largest logit and sum of exponentials relative to it.
struct SumExp {
  float max;
  double sum;
};

/// In one pass over memory: maximum and sum of a piece that stays in the first-level cache, the sum
/// so far rescaled when the maximum moves.
template <class T, bool kCapped>
SumExp sum_exp(const Logits<T, kCapped>& z, std::int64_t n) {
  constexpr std::int64_t kPiece = 2048;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const F f;
  float max = kNothing;
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, n - begin);
    V high = hn::Set(f, max);
    for_vectors(count, [&](std::int64_t j, auto lanes) {
      high = hn::Max(high, for_maximum(z.at(begin + j, lanes), lanes));
    });
    const float new_max = hn::GetLane(hn::MaxOfLanes(f, high));
    // Nothing but -inf so far: any finite number keeps the sum at zero.
    const float safe = new_max == kNothing ? 0.0f : new_max;
    V part = hn::Zero(f);
    for_vectors(count, [&](std::int64_t j, auto lanes) {
      const V p = exp<false>(hn::Sub(z.at(begin + j, lanes), hn::Set(f, safe)));
      part = hn::Add(part, keep(p, lanes));
    });
    sum = sum * std::exp(static_cast<double>(max) - safe) + sum_of_lanes(part);
    max = new_max;
  }
  return {max, sum};
}

/// The column of row i's target where it is one of `num_classes` here, else -1.
template <class Op>
std::int64_t target_here(const Op& op, std::int64_t i) {
  const std::int32_t target = op.target.template as<std::int32_t>()[i];
  const std::int64_t column = target - op.part.first;
  return target >= 0 && column >= 0 && column < op.num_classes ? column : -1;
}

template <class T, bool kCapped>
void logit_statistics_row(const LogitStatistics& op, std::int64_t i) {
  const Logits<T, kCapped> z{op.logits.row<T>(i), static_cast<float>(op.softcap)};
  const SumExp row = sum_exp(z, op.num_classes);
  const std::int64_t target = target_here(op, i);
  op.statistics.as<RowStatistics<float>>()[i] = {row.max, static_cast<float>(row.sum),
                                                 target < 0 ? 0.0f : z[target]};
}

void logit_statistics_row_of(const LogitStatistics& op, std::int64_t i) {
  with_fast_type(op.logits.dtype, [&]<class T>() {
    op.softcap > 0 ? logit_statistics_row<T, true>(op, i) : logit_statistics_row<T, false>(op, i);
  });
}

/// G is the type of the gradient.
template <class T, class G, bool kCapped>
void cross_entropy_row(const CrossEntropy& op, std::int64_t i) {
  const auto cap = static_cast<float>(op.softcap);
  const Logits<T, kCapped> z{op.logits.row<T>(i), cap};
  const std::int64_t target = target_here(op, i);
  G* dz = op.dlogits.defined() ? op.dlogits.row<G>(i) : nullptr;
  const std::int64_t cols = op.logits.cols();
  if (op.target.as<std::int32_t>()[i] < 0) {
    op.loss.as<float>()[i] = 0;
    if (op.z_loss.defined()) op.z_loss.as<float>()[i] = 0;
    if (dz != nullptr) std::fill_n(dz, cols, G{});
    return;
  }
  float lse, z_target;
  if (op.statistics.defined()) {
    const auto all = joined_statistics<float>(op, i);
    lse = all.max + std::log(all.sum);
    z_target = all.at_target;
  } else {
    const SumExp all = sum_exp(z, op.num_classes);
    lse = static_cast<float>(all.max + std::log(all.sum));
    z_target = z[target];
  }
  op.loss.as<float>()[i] = lse - z_target;
  const auto z_coef = static_cast<float>(op.z_loss_coef);
  if (op.z_loss.defined()) op.z_loss.as<float>()[i] = z_coef * lse * lse;
  if (dz == nullptr) return;
  const float softmax_scale = 1 + 2 * z_coef * lse;
  const V scale = constant(static_cast<float>(op.grad_scale_now()) * softmax_scale);
  const V shift = hn::Set(F(), lse);
  // Ascending, each vector read before it is written: dz may lie over z.
  for_vectors(op.num_classes, [&](std::int64_t j, auto lanes) {
    const V logit = z.at(j, lanes);
    V gradient = hn::Mul(scale, exp<false>(hn::Sub(logit, shift)));
    if constexpr (kCapped) gradient = hn::Mul(gradient, soft_cap_slope(logit, cap));
    store(gradient, dz + j, lanes);
  });
  std::fill(dz + op.num_classes, dz + cols, G{});
  if (target < 0) return;  // another part has it
  float gradient =
      static_cast<float>(op.grad_scale_now()) * (std::exp(z_target - lse) * softmax_scale - 1);
  if (kCapped) gradient *= 1 - (z_target / cap) * (z_target / cap);
  dz[target] = narrow<G>(gradient);
}

void cross_entropy_row_of(const CrossEntropy& op, std::int64_t i) {
  const bool capped = op.softcap > 0;
  const auto with_gradient = [&]<class T, class G>() {
    capped ? cross_entropy_row<T, G, true>(op, i) : cross_entropy_row<T, G, false>(op, i);
  };
  with_fast_type(op.dlogits.defined() ? op.dlogits.dtype : op.logits.dtype, [&]<class G>() {
    if (op.logits.dtype == DType::f32) return with_gradient.template operator()<float, G>();
    with_gradient.template operator()<G, G>();  // narrow logits have narrow gradients
  });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(cross_entropy_row_of);
HWY_EXPORT(logit_statistics_row_of);

namespace {

void logit_statistics(const KernelCtx& ctx, const LogitStatistics& op, const View& workspace) {
  if (op.logits.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_ids(op.name, op.target, -1, op.part.end(op.num_classes));
  parallel_blocks(ctx.threads, op.logits.rows(), 1, [&](std::int64_t i, std::int64_t) {
    HWY_DYNAMIC_DISPATCH(logit_statistics_row_of)(op, i);
  });
}

void cross_entropy(const KernelCtx& ctx, const CrossEntropy& op, const View& workspace) {
  if (op.logits.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_ids(op.name, op.target, -1, op.part.end(op.num_classes));
  parallel_blocks(ctx.threads, op.logits.rows(), 1, [&](std::int64_t i, std::int64_t) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_row_of)(op, i);
  });
}

/// Sum of n elements in eight chains, which the compiler keeps in vectors.
template <class T>
double block_sum(const T* x, std::int64_t n) {
  std::array<double, 8> chain = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int c = 0; c < 8; ++c) chain[c] += x[i + c];
  }
  for (int c = 0; i < n; ++i, ++c) chain[c] += x[i];
  return ((chain[0] + chain[1]) + (chain[2] + chain[3])) +
         ((chain[4] + chain[5]) + (chain[6] + chain[7]));
}

void sum(const KernelCtx& ctx, const Sum& op, const View&) {
  constexpr std::int64_t kBlocksInHand = 512;
  std::array<double, kBlocksInHand> part;
  const std::int64_t n = op.x.numel();
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlocksInHand * Sum::kBlock) {
    const std::int64_t count = std::min(kBlocksInHand * Sum::kBlock, n - begin);
    parallel_blocks(ctx.threads, count, Sum::kBlock, [&](std::int64_t first, std::int64_t end) {
      part[first / Sum::kBlock] = op.x.dtype == DType::f64
                                      ? block_sum(op.x.as<double>() + begin + first, end - first)
                                      : block_sum(op.x.as<float>() + begin + first, end - first);
    });
    for (std::int64_t b = 0; b * Sum::kBlock < count; ++b) total += part[b];
  }
  op.out.as<double>()[0] += total;
}

}  // namespace

void add_loss_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<EmbeddingForward, embedding_forward>());
  rows.push_back(row_of<EmbeddingBackward, embedding_backward>());
  rows.push_back(row_of<LogitStatistics, logit_statistics>());
  rows.push_back(row_of<CrossEntropy, cross_entropy>());
  rows.push_back(row_of<Sum, sum>());
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
