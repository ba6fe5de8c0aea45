#include "kernels/head_norm_rope.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/head_norm_rope.cpp"
#include <cmath>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/column_sum.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rope_positions.hpp"
#include "kernels/cpu/rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// What turns norm i, and its weight, in type W.
template <class W>
struct Head {
  const float *cosine, *sine;
  const W* weight;

  template <class Op>
  Head(const Op& op, std::int64_t i) {
    const std::int64_t heads = op.norms().heads;
    const std::int64_t position = op.heads.position.template as<std::int32_t>()[i / heads];
    const std::int64_t at = position * (op.heads.rotary_dim / 2);
    cosine = op.heads.cosine.template as<float>() + at;
    sine = op.heads.sine.template as<float>() + at;
    const View& view = i % heads < op.heads.q_heads ? op.q_weight : op.k_weight;
    weight = view.template as<W>();
  }
};

/// A pair of vectors that turns.
struct Pair {
  V a, b;
};
template <class L>
HWY_INLINE Pair turned(Pair x, const float* cosine, V sine, std::int64_t i, L lanes) {
  const V c = load(cosine + i, lanes);
  return {hn::Sub(hn::Mul(x.a, c), hn::Mul(x.b, sine)),
          hn::Add(hn::Mul(x.b, c), hn::Mul(x.a, sine))};
}

/// Sum over a head of term(offset, lanes), whose lanes beyond the head must be zero. Two running
/// sums hide the latency of an addition.
template <class Term>
HWY_INLINE float sum_of_head(std::int64_t width, const Term& term) {
  V sums[2] = {constant(0), constant(0)};
  int turn = 0;
  for_vectors(width, [&](std::int64_t j, auto lanes) HWY_ATTR {
    sums[turn] = hn::Add(sums[turn], term(j, lanes));
    turn ^= 1;
  });
  return sum_of_lanes(hn::Add(sums[0], sums[1]));
}

template <class T, class W>
void forward_head(const HeadNormRope& op, std::int64_t i) {
  const NormRows rows = op.norms();
  const Head<W> head(op, i);
  const T* x = rows.at<T>(op.x, i);
  T* y = rows.at<T>(op.y, i);
  const float squares = sum_of_head(rows.width, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const V value = load(x + j, lanes);
    return hn::Mul(value, value);
  });
  const float mean = squares / static_cast<float>(rows.width);
  const float rstd = 1 / std::sqrt(mean + static_cast<float>(op.eps));
  op.rstd.as<float>()[i] = rstd;
  const V scale = constant(rstd);
  const auto scaled = [&](std::int64_t j, auto lanes) HWY_ATTR {
    return hn::Mul(hn::Mul(load(x + j, lanes), scale), load(head.weight + j, lanes));
  };
  const std::int64_t half = op.heads.rotary_dim / 2;
  for_vectors(half, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const Pair pair = turned({scaled(j, lanes), scaled(half + j, lanes)}, head.cosine,
                             load(head.sine + j, lanes), j, lanes);
    store(pair.a, y + j, lanes);
    store(pair.b, y + half + j, lanes);
  });
  for_vectors(rows.width - 2 * half, [&](std::int64_t j, auto lanes) HWY_ATTR {
    store(scaled(2 * half + j, lanes), y + 2 * half + j, lanes);
  });
}

/// Adds the head's part of its weight's gradient to `dweight`; `g` has room for a head.
template <class T, class W>
void backward_head(const HeadNormRopeBackward& op, std::int64_t i, float* g, float* dweight) {
  const NormRows rows = op.norms();
  const Head<W> head(op, i);
  const T* dy = rows.at<T>(op.dy, i);
  const T* x = rows.at<T>(op.x, i);
  T* dx = rows.at<T>(op.dx, i);
  const std::int64_t half = op.heads.rotary_dim / 2;
  for_vectors(half, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const Pair pair = turned({load(dy + j, lanes), load(dy + half + j, lanes)}, head.cosine,
                             hn::Neg(load(head.sine + j, lanes)), j, lanes);
    store(pair.a, g + j, lanes);
    store(pair.b, g + half + j, lanes);
  });
  for_vectors(rows.width - 2 * half, [&](std::int64_t j, auto lanes) HWY_ATTR {
    store(load(dy + 2 * half + j, lanes), g + 2 * half + j, lanes);
  });
  const V rstd = constant(op.rstd.as<float>()[i]);
  const float sum = sum_of_head(rows.width, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const V gradient = load(g + j, lanes);
    const V n = hn::Mul(load(x + j, lanes), rstd);
    store(hn::Add(load(dweight + j, lanes), hn::Mul(gradient, n)), dweight + j, lanes);
    const V weighted = hn::Mul(gradient, load(head.weight + j, lanes));
    store(weighted, g + j, lanes);
    return hn::Mul(weighted, n);
  });
  const V mean = constant(sum / static_cast<float>(rows.width));
  for_vectors(rows.width, [&](std::int64_t j, auto lanes) HWY_ATTR {
    const V n = hn::Mul(load(x + j, lanes), rstd);
    store(hn::Mul(rstd, hn::Sub(load(g + j, lanes), hn::Mul(n, mean))), dx + j, lanes);
  });
}

/// Norms [begin, end).
void forward(const HeadNormRope& op, std::int64_t begin, std::int64_t end) {
  const auto run = [&]<class T, class W>() {
    for (std::int64_t i = begin; i < end; ++i) forward_head<T, W>(op, i);
  };
  with_fast_type(op.x.dtype, [&]<class T>() {
    op.q_weight.dtype == DType::f32 ? run.template operator()<T, float>()
                                    : run.template operator()<T, T>();
  });
}

/// Heads [begin, end) of q, or of k, `per_row` in a row from `first` on; their part of the weight's
/// gradient goes to `dweight`.
void backward(const HeadNormRopeBackward& op, std::int64_t first, std::int64_t per_row,
              std::int64_t begin, std::int64_t end, float* dweight) {
  const NormRows rows = op.norms();
  std::vector<float> g(static_cast<std::size_t>(rows.width));
  std::fill_n(dweight, rows.width, 0.0f);
  const auto run = [&]<class T, class W>() {
    for (std::int64_t p = begin; p < end; ++p) {
      backward_head<T, W>(op, p / per_row * rows.heads + first + p % per_row, g.data(), dweight);
    }
  };
  with_fast_type(op.dy.dtype, [&]<class T>() {
    op.q_weight.dtype == DType::f32 ? run.template operator()<T, float>()
                                    : run.template operator()<T, T>();
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

void run_forward(const KernelCtx& ctx, const HeadNormRope& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_positions(op.name, op.heads.position, op.heads.cosine);
  // Enough elements to hide a thread's start.
  const std::int64_t block = std::max<std::int64_t>(1, 16384 / op.norms().width);
  parallel_blocks(ctx.threads, op.norms().count(op.x), block,
                  [&](std::int64_t begin, std::int64_t end) {
                    HWY_DYNAMIC_DISPATCH(forward)(op, begin, end);
                  });
}

void run_backward(const KernelCtx& ctx, const HeadNormRopeBackward& op, const View& workspace) {
  if (op.dy.dtype == DType::f64) return run_reference(ctx, op, workspace);
  check_positions(op.name, op.heads.position, op.heads.cosine);
  const std::int64_t width = op.norms().width, q_heads = op.heads.q_heads;
  auto* sums = workspace.as<float>();
  const auto part = [&](std::int64_t first, std::int64_t per_row, const View& dweight) {
    const std::int64_t count = op.dy.rows() * per_row, blocks = num_row_blocks(count);
    parallel_blocks(ctx.threads, count, kRowsPerBlock, [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(backward)
      (op, first, per_row, begin, end, sums + begin / kRowsPerBlock * width);
    });
    join_row_blocks(ctx.threads, blocks, width, sums, dweight.as<float>());
    sums += blocks * width;
  };
  part(0, q_heads, op.dq_weight);
  part(q_heads, op.norms().heads - q_heads, op.dk_weight);
}

}  // namespace

void add_head_norm_rope_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<HeadNormRope, run_forward>());
  rows.push_back(row_of<HeadNormRopeBackward, run_backward>());
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
