#include "kernels/head_norm_rope.hpp"

#include <cmath>
#include <vector>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/rope_positions.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

/// Norm i of Op, HeadNormRope or HeadNormRopeBackward.
template <class T, class Op>
class Head {
 public:
  using W = Wide<T>;

  Head(const Op& op, std::int64_t i) : op_(op), of_q_(i % op.norms().heads < op.heads.q_heads) {
    const std::int64_t row = i / op.norms().heads;
    const std::int64_t position = op.heads.position.template as<std::int32_t>()[row];
    at_ = position * (op.heads.rotary_dim / 2);
  }

  bool of_q() const { return of_q_; }
  W weight(std::int64_t j) const {
    const View& view = of_q_ ? op_.q_weight : op_.k_weight;
    if (view.dtype == DType::f32) return view.template as<float>()[j];
    return widen(view.template as<T>()[j]);
  }
  /// Turns `values`, by the head's angles or back.
  void turn(std::vector<W>& values, bool inverse) const {
    const std::int64_t half = op_.heads.rotary_dim / 2;
    const W* cosine = op_.heads.cosine.template as<W>() + at_;
    const W* sine = op_.heads.sine.template as<W>() + at_;
    for (std::int64_t i = 0; i < half; ++i) {
      const W a = values[i], b = values[i + half];
      const W s = inverse ? -sine[i] : sine[i];
      values[i] = a * cosine[i] - b * s;
      values[i + half] = b * cosine[i] + a * s;
    }
  }

 private:
  const Op& op_;
  bool of_q_;
  std::int64_t at_;
};

template <class T>
void forward_head(const HeadNormRope& op, std::int64_t i) {
  using W = Wide<T>;
  const NormRows rows = op.norms();
  const Head<T, HeadNormRope> head(op, i);
  const T* x = rows.at<T>(op.x, i);
  W square = 0;
  for (std::int64_t j = 0; j < rows.width; ++j) square += widen(x[j]) * widen(x[j]);
  const W rstd = 1 / std::sqrt(square / static_cast<W>(rows.width) + static_cast<W>(op.eps));
  op.rstd.as<W>()[i] = rstd;
  std::vector<W> values(static_cast<std::size_t>(rows.width));
  for (std::int64_t j = 0; j < rows.width; ++j) values[j] = widen(x[j]) * rstd * head.weight(j);
  head.turn(values, false);
  T* y = rows.at<T>(op.y, i);
  for (std::int64_t j = 0; j < rows.width; ++j) y[j] = narrow<T>(values[j]);
}

/// Adds the head's part of its weight's gradient to `dweight`.
template <class T>
void backward_head(const HeadNormRopeBackward& op, std::int64_t i, Wide<T>* dweight) {
  using W = Wide<T>;
  const NormRows rows = op.norms();
  const Head<T, HeadNormRopeBackward> head(op, i);
  const T* dy = rows.at<T>(op.dy, i);
  const T* x = rows.at<T>(op.x, i);
  T* dx = rows.at<T>(op.dx, i);
  const W rstd = op.rstd.as<W>()[i];
  std::vector<W> g(static_cast<std::size_t>(rows.width));
  for (std::int64_t j = 0; j < rows.width; ++j) g[j] = widen(dy[j]);
  head.turn(g, true);
  W sum = 0;
  for (std::int64_t j = 0; j < rows.width; ++j) {
    const W n = widen(x[j]) * rstd;
    dweight[j] += g[j] * n;
    g[j] *= head.weight(j);
    sum += g[j] * n;
  }
  const W mean = sum / static_cast<W>(rows.width);
  for (std::int64_t j = 0; j < rows.width; ++j) {
    dx[j] = narrow<T>(rstd * (g[j] - widen(x[j]) * rstd * mean));
  }
}

/// The heads of q, or of k, of all rows: `count` of them, `per_row` in a row from `first` on.
template <class T>
void backward_part(const HeadNormRopeBackward& op, std::int64_t first, std::int64_t per_row,
                   const View& dweight) {
  using W = Wide<T>;
  const NormRows rows = op.norms();
  const std::int64_t count = op.dy.rows() * per_row;
  std::vector<W> sums(static_cast<std::size_t>(rows.width));
  for (std::int64_t begin = 0; begin < count; begin += kRowsPerBlock) {
    std::fill(sums.begin(), sums.end(), W{0});
    for (std::int64_t p = begin; p < std::min(count, begin + kRowsPerBlock); ++p) {
      backward_head<T>(op, p / per_row * rows.heads + first + p % per_row, sums.data());
    }
    for (std::int64_t j = 0; j < rows.width; ++j) dweight.as<W>()[j] += sums[j];
  }
}

void forward(const KernelCtx&, const HeadNormRope& op, const View&) {
  check_positions(op.name, op.heads.position, op.heads.cosine);
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.norms().count(op.x); ++i) forward_head<T>(op, i);
  });
}

void backward(const KernelCtx&, const HeadNormRopeBackward& op, const View&) {
  check_positions(op.name, op.heads.position, op.heads.cosine);
  const std::int64_t q_heads = op.heads.q_heads;
  with_type(op.dy.dtype, [&]<class T>() {
    backward_part<T>(op, 0, q_heads, op.dq_weight);
    backward_part<T>(op, q_heads, op.norms().heads - q_heads, op.dk_weight);
  });
}

}  // namespace

void add_head_norm_rope_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<HeadNormRope, forward>());
  rows.push_back(row_of<HeadNormRopeBackward, backward>());
}

}  // namespace llmtrain::kernels::reference
