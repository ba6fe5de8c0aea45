#pragma once
/// Attention problems for the CPU's reference and for a GPU.

#include <algorithm>
#include <string>

#include "kernels/attention.hpp"
#include "tests/cuda/machine.hpp"

namespace llmtrain::kernels::gpu_trial {

struct AttentionCase {
  std::string_view name;
  std::int64_t sequences = 1, tq = 40, tk = 40, heads = 2, kv_heads = 1, head_dim = 16;
  std::int64_t window = 0;
  double softcap = 0;
  bool alibi = false, sink = false;
  double dropout = 0;
  std::int64_t first_head = 0, layer_heads = 0;  // of AttentionDropout
  /// q, k, v (and their gradients) are columns of one buffer, if Tq == Tk.
  bool fused = false;
  /// With it: rows begin at no multiple of 16 bytes, as they do if heads are no whole chunks.
  bool odd_rows = false;
  /// Columns behind each row of q, without it.
  std::int64_t gap = 0;
  /// First positions of documents; position p belongs to the last of them that is <= p.
  std::vector<std::int32_t> documents = {0};
  /// Position of the first query and of the first key.
  std::int32_t q_begin = 0, k_begin = 0;
  /// Rows hold the positions in no order.
  bool scattered = false;
  double scale = 0;  // 0: 1 / sqrt(head_dim)
  AttentionChoice choice = AttentionChoice::own;
  std::uint64_t library_workspace_bytes = std::uint64_t{4} << 20;
  Determinism determinism = Determinism::run;
  /// Results are FP32 beside narrower operands.
  bool wide = false;

  KnownRows known() const {
    if (scattered || q_begin != 0 || k_begin != 0 || tq != tk) return KnownRows::nothing;
    return documents.size() == 1 ? KnownRows::one_document : KnownRows::in_order;
  }
};

/// Operands of one run on one machine. lse, out and dout of the backward are given, so that each
/// direction is compared by itself.
class AttentionProblem {
 public:
  AttentionProblem(Machine& m, const AttentionCase& c)
      : c_(c), m_(m), q_cols_(c.heads * c.head_dim), k_cols_(c.kv_heads * c.head_dim) {
    m.ctx().attention = c.choice;
    m.ctx().library_workspace_bytes = c.library_workspace_bytes;
    m.ctx().determinism = c.determinism;
    shape_.num_sequences = c.sequences;
    shape_.known_rows = c.known();
    shape_.num_heads = c.heads;
    shape_.num_kv_heads = c.kv_heads;
    shape_.head_dim = c.head_dim;
    shape_.scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
    shape_.softcap = c.softcap;
    shape_.window = c.window;
    positions();
    if (c.alibi) {
      Values slopes;
      for (std::int64_t h = 1; h <= c.heads; ++h) slopes.push_back(std::exp2(-2.0 - double(h)));
      alibi_ = m.of(slopes, {c.heads}, m.wide());
      shape_.alibi = alibi_;
    }
    if (c.sink) {
      sink_ = m.operand("sink", {c.heads});
      shape_.sink = sink_;
    }
    const std::int64_t q_rows = c.sequences * c.tq, k_rows = c.sequences * c.tk;
    q_ = m.operand("q", {q_rows, q_cols_}, c.fused ? k_cols_ * 2 : c.gap);
    k_ = m.operand("k", {k_rows, k_cols_}, gap(q_cols_ + k_cols_));
    v_ = m.operand("v", {k_rows, k_cols_}, gap(q_cols_ + k_cols_));
  }

  std::vector<Output> forward() {
    const Tensor out =
        result({c_.sequences * c_.tq, q_cols_}, c_.fused ? (whole_chunks() ? 32 : 24) : 0);
    const Tensor lse = m_.empty({c_.sequences, c_.heads, c_.tq}, m_.wide());
    m_.run(AttentionForward{shape_, q_, k_, v_, out, lse});
    return outputs(m_, out, lse);
  }

  /// From the given out and lse: what the reference's forward finds in fp64 on the same numbers.
  std::vector<Output> backward(const Values& out_values, const Values& lse_values) {
    const std::int64_t q_rows = c_.sequences * c_.tq, k_rows = c_.sequences * c_.tk;
    const Tensor dout = m_.operand("dout", {q_rows, q_cols_});
    const Tensor out = m_.of(out_values, {q_rows, q_cols_}, m_.compute());
    const Tensor lse = m_.of(lse_values, {c_.sequences, c_.heads, c_.tq}, m_.wide());
    const Tensor dq = result({q_rows, q_cols_}, gap(whole_chunks() ? 16 : 8)),
                 dk = result({k_rows, k_cols_}),
                 dv = result({k_rows, k_cols_}, gap(whole_chunks() ? 16 : 8));
    Tensor dsink;
    if (c_.sink)
      dsink = m_.of(Values(static_cast<std::size_t>(c_.heads), 0.25), {c_.heads}, m_.wide());
    m_.run(AttentionBackward{shape_, q_, k_, v_, out, lse, dout, dq, dk, dv, dsink.view()});
    auto found = c_.sink ? outputs(m_, dq, dk, dv, dsink) : outputs(m_, dq, dk, dv);
    if (m_.operand_type() == DType::bf16 || m_.operand_type() == DType::f16) {
      found[0].of_magnitude = cancelled(dout, k_);
      found[1].of_magnitude = cancelled(dout, q_);
    }
    return found;
  }

 private:
  Tensor result(const Shape& shape, std::int64_t gap = 0) {
    return m_.empty(shape, c_.wide ? m_.wide() : m_.compute(), gap);
  }
  /// Gradients of scores are differences of sums in FP32, which may be equal: their rounding, times
  /// what they are multiplied with, in units of the results'.
  double cancelled(const Tensor& dout, const Tensor& other) const {
    const double sums = static_cast<double>(c_.head_dim) * max_magnitude(m_.read(dout)) *
                        max_magnitude(m_.read(v_));
    return sums * max_magnitude(m_.read(other)) * std::abs(shape_.scale) *
           test::rounding_of(DType::f32) / test::rounding_of(m_.operand_type());
  }
  std::int64_t gap(std::int64_t columns) const { return c_.fused ? columns : 0; }
  /// Of 16 bytes: heads that tensor cores take, if rows begin where they may.
  bool whole_chunks() const { return c_.head_dim % 8 == 0 && !c_.odd_rows; }

  std::int32_t place(std::int64_t row, std::int64_t rows) const {
    // 7 has no factor in common with the sizes that are scattered.
    return static_cast<std::int32_t>(c_.scattered ? (row * 7 + 3) % rows : row);
  }

  void positions() {
    std::vector<std::int32_t> q, begin, k;
    std::vector<std::int64_t> sample;
    for (std::int64_t s = 0; s < c_.sequences; ++s) {
      sample.push_back(3 + s);
      for (std::int64_t i = 0; i < c_.tq; ++i) {
        q.push_back(c_.q_begin + place(i, c_.tq));
        begin.push_back(
            *(std::upper_bound(c_.documents.begin(), c_.documents.end(), q.back()) - 1));
      }
      for (std::int64_t j = 0; j < c_.tk; ++j) k.push_back(c_.k_begin + place(j, c_.tk));
    }
    q_position_ = m_.integers(q);
    q_document_begin_ = m_.integers(begin);
    k_position_ = m_.integers(k);
    q_sample_ = m_.integers(sample);
    shape_.q_position = q_position_;
    shape_.q_document_begin = q_document_begin_;
    shape_.k_position = k_position_;
    shape_.q_sample = q_sample_;
    shape_.dropout = {c_.dropout,    philox_key(5, "dropout", "layer 0"),
                      kStep,         std::max(c_.q_begin + c_.tq, c_.k_begin + c_.tk),
                      c_.first_head, c_.layer_heads};
    if (m_.device().kind() != DeviceKind::cuda) return;
    // On a GPU the step in memory counts, not the one that the launch was given.
    shape_.dropout.step = kStep - 1;
    scalars_ = m_.of({kStep, 1, 0, 0}, {StepScalars::kScalars}, DType::f64);
    shape_.dropout.scalars = scalars_;
  }

  static constexpr std::uint64_t kStep = 17;

  AttentionCase c_;
  Machine& m_;
  std::int64_t q_cols_, k_cols_;
  AttentionShape shape_;
  Tensor q_, k_, v_, alibi_, sink_, q_position_, q_document_begin_, k_position_, q_sample_,
      scalars_;
};

/// Both directions of one problem.
inline void compare_attention(const AttentionCase& c, DType dtype, const Limits& forward,
                              const Limits& backward) {
  CAPTURE(c.name);
  INFO("forward");
  compare([&](Machine& m) { return AttentionProblem(m, c).forward(); }, dtype, forward);
  Machine exact(Place::reference, DType::f64, dtype);
  const std::vector<Output> found = AttentionProblem(exact, c).forward();
  INFO("backward");
  compare(
      [&](Machine& m) { return AttentionProblem(m, c).backward(found[0].values, found[1].values); },
      dtype, backward);
}

}  // namespace llmtrain::kernels::gpu_trial
