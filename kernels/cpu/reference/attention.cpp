#include "kernels/attention.hpp"

#include <cmath>
#include <limits>

#include "kernels/attention_rule.hpp"
#include "kernels/attention_scratch.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/reference/rope.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/operands.hpp"

namespace llmtrain::kernels::reference {

namespace {

template <class T>
Wide<T> dot(const T* a, const T* b, std::int64_t n) {
  Wide<T> sum = 0;
  for (std::int64_t d = 0; d < n; ++d) sum += widen(a[d]) * widen(b[d]);
  return sum;
}

/// Into a view of T, or of sums.
template <class T>
void put(const View& to, std::int64_t row, std::int64_t column, Wide<T> value) {
  if (to.dtype == sum_dtype(to.dtype)) {
    to.row<Wide<T>>(row)[column] = value;
  } else {
    to.row<T>(row)[column] = narrow<T>(value);
  }
}

/// One (sequence, query head) of either direction: where its rows are and which pairs count.
template <class T>
struct Head {
  using W = Wide<T>;
  const AttentionShape& shape;
  std::int64_t sequence, head, tq, tk;

  std::int64_t group() const { return head / (shape.num_heads / shape.num_kv_heads); }
  T* q_row(const View& view, std::int64_t i) const {
    return view.row<T>(sequence * tq + i) + head * shape.head_dim;
  }
  T* k_row(const View& view, std::int64_t j) const {
    return view.row<T>(sequence * tk + j) + group() * shape.head_dim;
  }
  void put_q(const View& to, std::int64_t i, std::int64_t d, W value) const {
    put<T>(to, sequence * tq + i, head * shape.head_dim + d, value);
  }
  void put_k(const View& to, std::int64_t j, std::int64_t d, W value) const {
    put<T>(to, sequence * tk + j, group() * shape.head_dim + d, value);
  }
  std::int64_t statistic(std::int64_t i) const {
    return (sequence * shape.num_heads + head) * tq + i;
  }
  std::int32_t k_position(std::int64_t j) const {
    return shape.k_position.as<std::int32_t>()[sequence * tk + j];
  }
  bool sees(std::int64_t i, std::int64_t j) const {
    return visible_keys(shape, sequence * tq + i).contains(k_position(j));
  }
  W score(const View& q, const View& k, std::int64_t i, std::int64_t j) const {
    const W raw = static_cast<W>(shape.scale) * dot(q_row(q, i), k_row(k, j), shape.head_dim);
    const auto cap = static_cast<W>(shape.softcap);
    return cap > 0 ? cap * std::tanh(raw / cap) : raw;
  }
  /// What ALiBi adds to it.
  W bias(std::int64_t i, std::int64_t j) const {
    if (!shape.alibi.defined()) return 0;
    const std::int32_t q_position = shape.q_position.as<std::int32_t>()[sequence * tq + i];
    return shape.alibi.as<W>()[head] * static_cast<W>(k_position(j) - q_position);
  }
  /// Derivative of a score with respect to what it was before the cap.
  W slope(W score) const {
    if (shape.softcap == 0) return 1;
    const W t = score / static_cast<W>(shape.softcap);
    return 1 - t * t;
  }
  /// What dropout multiplies the probability of (i, j) with.
  W kept(std::int64_t i, std::int64_t j) const {
    const AttentionDropout& dropout = shape.dropout;
    if (dropout.p == 0) return 1;
    const std::int32_t q_position = shape.q_position.as<std::int32_t>()[sequence * tq + i];
    const std::uint64_t index = dropout_row_index(shape, sequence, head, q_position) +
                                static_cast<std::uint64_t>(k_position(j));
    const double uniform = unit_interval(philox_word(dropout.key, dropout.step_now(), index));
    return uniform >= dropout.p ? static_cast<W>(1 / (1 - dropout.p)) : W{0};
  }
};

template <class T>
void forward_row(const AttentionForward& op, const Head<T>& head, std::int64_t i,
                 Wide<T>* probability) {
  using W = Wide<T>;
  constexpr W kNothing = -std::numeric_limits<W>::infinity();
  const bool sink = op.shape.sink.defined();
  const W first = sink ? sink_of<W>(op.shape, head.head) : kNothing;
  W max = first;
  bool blind = true;
  for (std::int64_t j = 0; j < head.tk; ++j) {
    if (!head.sees(i, j)) continue;
    probability[j] = head.score(op.q, op.k, i, j) + head.bias(i, j);
    max = std::max(max, probability[j]);
    blind = false;
  }
  W sum = sink ? std::exp(first - max) : W{0};
  for (std::int64_t j = 0; j < head.tk; ++j) {
    probability[j] = head.sees(i, j) ? std::exp(probability[j] - max) : W{0};
    sum += probability[j];
  }
  op.lse.as<W>()[head.statistic(i)] = blind ? first : max + std::log(sum);
  for (std::int64_t j = 0; j < head.tk; ++j) {
    if (probability[j] != 0) probability[j] *= head.kept(i, j);
  }
  for (std::int64_t d = 0; d < op.shape.head_dim; ++d) {
    W value = 0;
    for (std::int64_t j = 0; j < head.tk; ++j) {
      if (probability[j] != 0) value += probability[j] * widen(head.k_row(op.v, j)[d]);
    }
    head.put_q(op.out, i, d, blind ? W{0} : value / sum);
  }
}

void forward(const KernelCtx&, const AttentionForward& op, const View& workspace) {
  const AttentionShape& shape = op.shape;
  require_known_rows(shape);
  if (shape.num_sequences == 0) return;
  const std::int64_t tq = op.q.rows() / shape.num_sequences;
  const std::int64_t tk = op.k.rows() / shape.num_sequences;
  with_type(op.q.dtype, [&]<class T>() {
    for (std::int64_t s = 0; s < shape.num_sequences; ++s) {
      for (std::int64_t h = 0; h < shape.num_heads; ++h) {
        const Head<T> head{shape, s, h, tq, tk};
        for (std::int64_t i = 0; i < tq; ++i) {
          forward_row<T>(op, head, i, workspace.as<Wide<T>>());
        }
      }
    }
  });
}

/// The gradients of one sequence and key/value head. The scratch rows hold the probabilities (after
/// dropout), the gradients of the scores, and delta of all query rows of the group.
template <class T>
class Group {
 public:
  using W = Wide<T>;
  Group(const AttentionBackward& op, std::int64_t sequence, std::int64_t group, W* scratch)
      : op_(op),
        tq_(op.q.rows() / op.shape.num_sequences),
        tk_(op.k.rows() / op.shape.num_sequences),
        heads_(op.shape.num_heads / op.shape.num_kv_heads),
        sequence_(sequence),
        first_head_(group * heads_) {
    const std::int64_t row = reference_backward_row(heads_, tq_, tk_);
    probability_ = scratch;
    dscore_ = scratch + row;
    delta_ = scratch + 2 * row;
    for (std::int64_t r = 0; r < heads_ * tq_; ++r) {
      const Head<T> head = head_of(r);
      delta_[r] = dot(head.q_row(op.dout, r % tq_), head.q_row(op.out, r % tq_), op.shape.head_dim);
    }
  }

  void queries() const {
    for (std::int64_t r = 0; r < heads_ * tq_; ++r) {
      const Head<T> head = head_of(r);
      for (std::int64_t j = 0; j < tk_; ++j) pair(head, r, j, j);
      for (std::int64_t d = 0; d < op_.shape.head_dim; ++d) {
        W sum = 0;
        for (std::int64_t j = 0; j < tk_; ++j) {
          if (dscore_[j] != 0) sum += dscore_[j] * widen(head.k_row(op_.k, j)[d]);
        }
        head.put_q(op_.dq, r % tq_, d, static_cast<W>(op_.shape.scale) * sum);
      }
    }
  }

  void sinks() const {
    if (!op_.shape.sink.defined()) return;
    W* dsink = op_.dsink.template as<W>();
    for (std::int64_t r = 0; r < heads_ * tq_; ++r) {
      const Head<T> head = head_of(r);
      const W lse = op_.lse.template as<W>()[head.statistic(r % tq_)];
      dsink[head.head] -= std::exp(sink_of<W>(op_.shape, head.head) - lse) * delta_[r];
    }
  }

  void keys() const {
    const Head<T> any = {op_.shape, sequence_, first_head_, tq_, tk_};
    for (std::int64_t j = 0; j < tk_; ++j) {
      for (std::int64_t r = 0; r < heads_ * tq_; ++r) pair(head_of(r), r, j, r);
      for (std::int64_t d = 0; d < op_.shape.head_dim; ++d) {
        W dk = 0;
        W dv = 0;
        for (std::int64_t r = 0; r < heads_ * tq_; ++r) {
          const Head<T> head = head_of(r);
          if (dscore_[r] != 0) dk += dscore_[r] * widen(head.q_row(op_.q, r % tq_)[d]);
          if (probability_[r] != 0) dv += probability_[r] * widen(head.q_row(op_.dout, r % tq_)[d]);
        }
        any.put_k(op_.dk, j, d, static_cast<W>(op_.shape.scale) * dk);
        any.put_k(op_.dv, j, d, dv);
      }
    }
  }

 private:
  Head<T> head_of(std::int64_t r) const {
    return {op_.shape, sequence_, first_head_ + r / tq_, tq_, tk_};
  }

  /// Probability and score gradient of query row r of the group and key j, into slot `at`.
  void pair(const Head<T>& head, std::int64_t r, std::int64_t j, std::int64_t at) const {
    const std::int64_t i = r % tq_;
    probability_[at] = 0;
    dscore_[at] = 0;
    if (!head.sees(i, j)) return;
    const W score = head.score(op_.q, op_.k, i, j);
    const W p = std::exp(score + head.bias(i, j) - op_.lse.template as<W>()[head.statistic(i)]);
    const W kept = head.kept(i, j);
    const W dp = kept * dot(head.q_row(op_.dout, i), head.k_row(op_.v, j), op_.shape.head_dim);
    probability_[at] = p * kept;
    dscore_[at] = p * (dp - delta_[r]) * head.slope(score);
  }

  const AttentionBackward& op_;
  std::int64_t tq_, tk_, heads_, sequence_, first_head_;
  W* probability_;
  W* dscore_;
  W* delta_;
};

void backward(const KernelCtx&, const AttentionBackward& op, const View& workspace) {
  with_type(op.q.dtype, [&]<class T>() {
    for (std::int64_t s = 0; s < op.shape.num_sequences; ++s) {
      for (std::int64_t g = 0; g < op.shape.num_kv_heads; ++g) {
        const Group<T> group(op, s, g, workspace.as<Wide<T>>());
        group.sinks();
        group.queries();
        group.keys();
      }
    }
  });
}

template <class T>
void merge_row(const AttentionMerge& op, std::int64_t row, std::int64_t head) {
  const std::int64_t head_dim = op.out.cols() / op.num_heads;
  const std::int64_t tq = op.out.rows() / op.num_sequences;
  const std::int64_t at = (row / tq * op.num_heads + head) * tq + row % tq;
  T& lse = op.lse.as<T>()[at];
  const T part_lse = op.part_lse.as<T>()[at];
  const T max = std::max(lse, part_lse);
  if (max == -std::numeric_limits<T>::infinity()) return;  // neither saw anything
  const T weight = std::exp(lse - max), part_weight = std::exp(part_lse - max);
  const T sum = weight + part_weight;
  T* out = op.out.row<T>(row) + head * head_dim;
  const T* part = op.part_out.row<T>(row) + head * head_dim;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    out[d] = weight / sum * out[d] + part_weight / sum * part[d];
  }
  lse = max + std::log(sum);
}

void merge(const KernelCtx&, const AttentionMerge& op, const View&) {
  const auto rows = [&]<class T>() {
    for (std::int64_t row = 0; row < op.out.rows(); ++row) {
      for (std::int64_t h = 0; h < op.num_heads; ++h) merge_row<T>(op, row, h);
    }
  };
  if (op.out.dtype == DType::f64) {
    rows.template operator()<double>();
  } else {
    rows.template operator()<float>();
  }
}

}  // namespace

void add_attention_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<AttentionForward, forward>());
  rows.push_back(row_of<AttentionBackward, backward>());
  rows.push_back(row_of<AttentionMerge, merge>());
  rows.push_back(row_of<Rope, rope>());
}

}  // namespace llmtrain::kernels::reference
