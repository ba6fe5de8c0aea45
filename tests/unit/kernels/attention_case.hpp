#pragma once
/// One attention problem, run by any table in any dtype.

#include "kernels/attention.hpp"
#include "tests/unit/kernels/values.hpp"

namespace llmtrain::kernels {

/// Columns between the rows of a fused buffer.
inline constexpr std::int64_t kGap = 3;

struct AttentionCase {
  std::int64_t sequences = 1, tq = 8, tk = 8, heads = 2, kv_heads = 1, head_dim = 8;
  std::int64_t window = 0;
  double softcap = 0;
  bool alibi = false, sink = false;
  double dropout = 0;
  std::int64_t first_head = 0, layer_heads = 0;  // of AttentionDropout
  /// The step of dropout stands in memory (StepScalars); the launch was given another.
  bool step_in_memory = false;
  /// q, k, v (and their gradients) are columns of one buffer, with a gap at the end of its rows.
  bool fused = false;
  /// First positions of documents; position p belongs to the last of them that is <= p.
  std::vector<std::int32_t> documents = {0};
  /// Position of the first query and the first key.
  std::int32_t q_begin = 0, k_begin = 0;
  /// The first half of the rows holds the later positions, as after a zigzag exchange.
  bool rotated = false;
  KnownRows known = KnownRows::nothing;
  double q_scale = 1;

  std::int64_t q_size() const { return sequences * tq * heads * head_dim; }
  std::int64_t k_size() const { return sequences * tk * kv_heads * head_dim; }
};

/// Operands as doubles; statistics and gradients are filled by the runs.
struct AttentionData {
  std::vector<double> q, k, v, dout;
  std::vector<double> out, lse, dq, dk, dv, dsink;
};

inline AttentionData random_operands(const AttentionCase& c, DType dtype) {
  AttentionData data;
  data.q = rounded(normals("q", c.q_size(), c.q_scale), dtype);
  data.k = rounded(normals("k", c.k_size()), dtype);
  data.v = rounded(normals("v", c.k_size()), dtype);
  data.dout = rounded(normals("dout", c.q_size()), dtype);
  return data;
}

/// Owns device memory of one run.
class AttentionRun {
 public:
  AttentionRun(const AttentionCase& c, DType dtype, const KernelTable& table, int threads = 2)
      : case_(c), machine_(table, threads), dtype_(dtype) {
    shape_.num_sequences = c.sequences;
    shape_.num_heads = c.heads;
    shape_.num_kv_heads = c.kv_heads;
    shape_.head_dim = c.head_dim;
    shape_.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    shape_.softcap = c.softcap;
    shape_.known_rows = c.known;
    shape_.window = c.window;
    positions();
    operands({&q_, &k_, &v_});
    operands({&dq_, &dk_, &dv_});
    out_ = rows(c.sequences * c.tq, c.heads * c.head_dim);
    dout_ = rows(c.sequences * c.tq, c.heads * c.head_dim);
    const DType wide = dtype == DType::f64 ? dtype : DType::f32;
    lse_ = allocate({c.sequences, c.heads, c.tq}, wide);
    if (c.alibi) {
      alibi_ = machine_.of({c.heads}, wide, slopes(c.heads));
      shape_.alibi = alibi_;
    }
    if (c.sink) {
      sink_ = machine_.of({c.heads}, dtype, rounded(normals("sink", c.heads, 2), DType::bf16));
      dsink_ = machine_.of({c.heads}, wide,
                           std::vector<double>(static_cast<std::size_t>(c.heads), kOldDsink));
      shape_.sink = sink_;
    }
  }

  void load(const AttentionData& data) {
    write_rows(q_, data.q);
    write_rows(k_, data.k);
    write_rows(v_, data.v);
  }

  void forward(AttentionData& data) {
    load(data);
    launch_forward();
    data.out = read_rows(out_);
    data.lse = read_rows(lse_);
  }

  /// From data.out and data.lse.
  void backward(AttentionData& data) {
    load(data);
    write_rows(out_, data.out);
    write_rows(lse_, data.lse);
    write_rows(dout_, data.dout);
    launch_backward();
    data.dq = read_rows(dq_);
    data.dk = read_rows(dk_);
    data.dv = read_rows(dv_);
    if (case_.sink) data.dsink = read_rows(dsink_);
  }

  void launch_forward() { launch(machine_.ctx(), forward_kernel()); }
  void launch_backward() { launch(machine_.ctx(), backward_kernel()); }
  /// With fused operands: whether the gap behind every row of gradients is as it was.
  bool gap_untouched() const {
    const std::int64_t width = (case_.heads + 2 * case_.kv_heads) * case_.head_dim;
    for (std::int64_t i = 0; i < dq_.rows(); ++i) {
      const std::uint8_t* row =
          static_cast<const std::uint8_t*>(dq_.view().data) +
          i * dq_.view().row_stride * static_cast<std::int64_t>(size_of(dtype_));
      for (std::size_t b = 0; b < kGap * size_of(dtype_); ++b) {
        if (row[static_cast<std::size_t>(width) * size_of(dtype_) + b] != 0xff) return false;
      }
    }
    return true;
  }

  AttentionForward forward_kernel() const { return {shape_, q_, k_, v_, out_, lse_}; }
  AttentionBackward backward_kernel() const {
    return {shape_, q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_, dsink_.view()};
  }

  /// What the gradient of the sinks is added to.
  static constexpr double kOldDsink = 0.25;

 private:
  static std::vector<double> slopes(std::int64_t heads) {
    std::vector<double> slopes;
    for (std::int64_t h = 1; h <= heads; ++h) slopes.push_back(std::exp2(-h));
    return slopes;
  }

  Tensor allocate(const Shape& shape, DType dtype) { return machine_.allocate(shape, dtype); }
  Tensor rows(std::int64_t n, std::int64_t cols) { return allocate({n, cols}, dtype_); }

  /// Query-side, key-side, key-side matrices: separate, or columns of one buffer (if Tq == Tk).
  void operands(std::array<Tensor*, 3> matrices) {
    const std::int64_t q_cols = case_.heads * case_.head_dim;
    const std::int64_t k_cols = case_.kv_heads * case_.head_dim;
    if (case_.fused) {
      const Tensor buffer = rows(case_.sequences * case_.tq, q_cols + 2 * k_cols + kGap);
      *matrices[0] = buffer.columns(0, q_cols);
      *matrices[1] = buffer.columns(q_cols, k_cols);
      *matrices[2] = buffer.columns(q_cols + k_cols, k_cols);
    } else {
      *matrices[0] = rows(case_.sequences * case_.tq, q_cols);
      *matrices[1] = rows(case_.sequences * case_.tk, k_cols);
      *matrices[2] = rows(case_.sequences * case_.tk, k_cols);
    }
  }

  std::int32_t place(std::int64_t row, std::int64_t rows) const {
    return static_cast<std::int32_t>(case_.rotated ? (row + rows / 2) % rows : row);
  }

  void positions() {
    std::vector<std::int32_t> q, begin, k;
    std::vector<std::int64_t> sample;
    for (std::int64_t s = 0; s < case_.sequences; ++s) {
      sample.push_back(3 + s);
      for (std::int64_t i = 0; i < case_.tq; ++i) {
        q.push_back(case_.q_begin + place(i, case_.tq));
        const auto next =
            std::upper_bound(case_.documents.begin(), case_.documents.end(), q.back());
        begin.push_back(*(next - 1));
      }
      for (std::int64_t j = 0; j < case_.tk; ++j) {
        k.push_back(case_.k_begin + place(j, case_.tk));
      }
    }
    q_position_ = allocate({case_.sequences * case_.tq}, DType::i32);
    q_document_begin_ = allocate({case_.sequences * case_.tq}, DType::i32);
    k_position_ = allocate({case_.sequences * case_.tk}, DType::i32);
    q_sample_ = allocate({case_.sequences}, DType::i64);
    fill(q_position_, q);
    fill(q_document_begin_, begin);
    fill(k_position_, k);
    fill(q_sample_, sample);
    shape_.q_position = q_position_;
    shape_.q_document_begin = q_document_begin_;
    shape_.k_position = k_position_;
    shape_.q_sample = q_sample_;
    shape_.dropout = {case_.dropout,
                      philox_key(5, "dropout", "layer 0"),
                      17,
                      std::max(case_.q_begin + case_.tq, case_.k_begin + case_.tk),
                      case_.first_head,
                      case_.layer_heads};
    if (!case_.step_in_memory) return;
    scalars_.step = 17;
    shape_.dropout.step = 0;
    shape_.dropout.scalars = {
        &scalars_, DType::f64, {StepScalars::kScalars}, StepScalars::kScalars};
  }

  AttentionCase case_;
  Machine machine_;
  DType dtype_;
  AttentionShape shape_;
  StepScalars scalars_;
  Tensor q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_;
  Tensor q_position_, q_document_begin_, k_position_, q_sample_;
  Tensor alibi_, sink_, dsink_;
};

inline AttentionData run_attention(const AttentionCase& c, AttentionData data, DType dtype,
                                   const KernelTable& table, int threads = 2) {
  AttentionRun run(c, dtype, table, threads);
  run.forward(data);
  run.backward(data);
  return data;
}

}  // namespace llmtrain::kernels
