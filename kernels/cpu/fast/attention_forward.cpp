#include <array>
#include <cmath>
#include <limits>
#include <omp.h>
#include <utility>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/attention.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/attention_forward.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/attention_dropout-inl.h"
#include "kernels/cpu/fast/attention_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// A block of keys in scratch, and what every block of queries needs for a while.
struct Staged {
  float* k;
  float* v;
  float* tile;
  std::uint32_t* words;
};

float* take(float*& scratch, std::int64_t columns) {
  return std::exchange(scratch, scratch + kTile * columns);
}

/// One block of queries of one head against all keys, FlashAttention-2's algorithm 1. The tile of
/// scores is kept transposed, [key][query]: statistics of the queries are then vectors, and only
/// the queries need a transposed copy, once.
template <class T>
class ForwardBlock {
 public:
  ForwardBlock(const AttentionForward& op, const AttentionTask& task, float*& scratch)
      : op_(op),
        task_(task),
        head_dim_(op.shape.head_dim),
        columns_(attention_columns(head_dim_)),
        queries_(op.shape, task.sequence, task.tq, task.block),
        rows_(round_up(queries_.rows, std::max(kLanes, kStrip))),
        q_(take(scratch, columns_)),
        out_(take(scratch, columns_)),
        threshold_(dropout_threshold(op.shape.dropout.p)) {
    const std::int64_t row = task_.sequence * task_.tq + queries_.begin;
    stage(op_.q.row<T>(row) + task.head * head_dim_, op_.q.row_stride, queries_.rows, head_dim_,
          out_);
    stage_transposed(out_, queries_.rows, head_dim_, static_cast<float>(op_.shape.scale), q_);
    std::fill_n(out_, rows_ * columns_, 0.0f);
    const bool sink = op_.shape.sink.defined();
    std::fill_n(max_, kTile, sink ? sink_of<float>(op_.shape, task_.head) : kNothing);
    std::fill_n(sum_, kTile, sink ? 1.0f : 0.0f);
  }

  Sight sight(const KeyBlock& keys) const { return queries_.sight(keys); }

  void attend(const KeyBlock& keys, const Staged& staged, bool whole) {
    k_ = staged.k;
    v_ = staged.v;
    tile_ = staged.tile;
    words_ = staged.words;
    if (op_.shape.dropout.p > 0) {
      dropout_words<true>(op_.shape, task_.sequence, task_.head, queries_, keys, words_);
    }
    scores(keys, whole);
    constexpr std::int64_t kStep = std::max(kLanes, kStrip);
    for (std::int64_t i = 0; i < rows_; i += kStep) {
      const Span span = whole ? Span{0, keys.rows} : keys.seen_by(queries_.seen({i, i + kStep}));
      for (std::int64_t n = i; n < i + kStep; n += kLanes) probabilities(keys, n, span, whole);
    }
    values(keys, whole);
  }

  void finish() const {
    if (op_.out.dtype == DType::f32) {
      finish_as<float>();
    } else {
      finish_as<T>();
    }
  }

 private:
  template <class E>
  void finish_as() const {
    const std::int64_t row = task_.sequence * task_.tq + queries_.begin;
    E* out = op_.out.row<E>(row) + task_.head * head_dim_;
    float* lse = op_.lse.as<float>() +
                 (task_.sequence * op_.shape.num_heads + task_.head) * task_.tq + queries_.begin;
    const float kept = static_cast<float>(1 / (1 - op_.shape.dropout.p));
    for (std::int64_t i = 0; i < queries_.rows; ++i) {
      const bool blind = sum_[i] == 0;
      lse[i] = blind ? kNothing : max_[i] + std::log(sum_[i]);
      const V factor = hn::Set(F(), blind ? 0.0f : kept / sum_[i]);
      for_vectors(head_dim_, [&](std::int64_t d, auto lanes) {
        store(hn::Mul(load(out_ + i * columns_ + d), factor), out + i * op_.out.row_stride + d,
              lanes);
      });
    }
  }

  /// tile[j][i] = scale k_j q_i
  void scores(const KeyBlock& keys, bool whole) {
    if (whole) {
      product<Into::fresh>({k_, columns_, 1}, {q_, kTile}, {tile_, kTile}, keys.rows, rows_,
                           head_dim_);
      return;
    }
    for (std::int64_t j = 0; j < keys.rows; j += kStrip) {
      const Span span = queries_.seeing(keys.strip[j / kStrip]);
      const std::int64_t begin = span.begin / kLanes * kLanes;
      product<Into::fresh>({k_ + j * columns_, columns_, 1}, {q_ + begin, kTile},
                           {tile_ + j * kTile + begin, kTile}, kStrip, span.end - begin, head_dim_);
    }
  }

  /// Turns the scores of one vector of queries, keys in `span`, into probabilities relative to the
  /// maximum so far, and moves that.
  void probabilities(const KeyBlock& keys, std::int64_t i, const Span& span, bool whole) {
    const F f;
    const hn::RebindToSigned<F> word;
    if (span.empty()) {
      hn::StoreU(hn::Set(f, 1.0f), f, decay_ + i);
      return;
    }
    if (op_.shape.softcap > 0 || op_.shape.alibi.defined()) adjust(keys, i, span);
    const V old_max = hn::LoadU(f, max_ + i);
    V max = old_max;
    if (!whole) {
      const auto first = hn::LoadU(word, queries_.first.data() + i);
      const auto last = hn::LoadU(word, queries_.last.data() + i);
      for (std::int64_t j = span.begin; j < span.end; ++j) {
        float* score = tile_ + j * kTile + i;
        const auto position = hn::Set(word, keys.position[j]);
        const auto hidden = hn::Or(hn::Lt(position, first), hn::Gt(position, last));
        hn::StoreU(
            hn::IfThenElse(hn::RebindMask(f, hidden), hn::Set(f, kNothing), hn::LoadU(f, score)), f,
            score);
      }
    }
    for (std::int64_t j = span.begin; j < span.end; ++j) {
      max = hn::Max(max, hn::LoadU(f, tile_ + j * kTile + i));
    }
    // A query that has seen nothing yet: any finite number keeps exp(-inf - max) at zero.
    const V safe = hn::IfThenElse(hn::Eq(max, hn::Set(f, kNothing)), hn::Zero(f), max);
    V sum = hn::Zero(f);
    for (std::int64_t j = span.begin; j < span.end; ++j) {
      float* score = tile_ + j * kTile + i;
      V p = exp<false>(hn::Sub(hn::LoadU(f, score), safe));
      sum = hn::Add(sum, p);
      if (op_.shape.dropout.p > 0) {
        p = hn::IfThenElseZero(kept(words_ + j * kTile + i, threshold_), p);
      }
      hn::StoreU(p, f, score);
    }
    const V decay = exp<false>(hn::Sub(old_max, safe));
    hn::StoreU(decay, f, decay_ + i);
    hn::StoreU(hn::MulAdd(hn::LoadU(f, sum_ + i), decay, sum), f, sum_ + i);
    hn::StoreU(max, f, max_ + i);
  }

  /// The cap and ALiBi, for one vector of queries.
  HWY_NOINLINE void adjust(const KeyBlock& keys, std::int64_t i, const Span& span) {
    const F f;
    const auto softcap = static_cast<float>(op_.shape.softcap);
    const float slope = op_.shape.alibi.defined() ? op_.shape.alibi.as<float>()[task_.head] : 0;
    const V position = float_positions(queries_.last.data() + i);
    for (std::int64_t j = span.begin; j < span.end; ++j) {
      V score = hn::LoadU(f, tile_ + j * kTile + i);
      if (softcap > 0) score = soft_cap(score, softcap);
      if (slope != 0) {
        const V distance = hn::Sub(float_position(keys.position[j]), position);
        score = hn::MulAdd(hn::Set(f, slope), distance, score);
      }
      hn::StoreU(score, f, tile_ + j * kTile + i);
    }
  }

  /// out[i] = decay[i] out[i] + sum_j tile[j][i] v_j
  void values(const KeyBlock& keys, bool whole) {
    for (std::int64_t i = 0; i < queries_.rows; i += kStrip) {
      const Span span = whole ? Span{0, keys.rows} : keys.seen_by(queries_.seen({i, i + kStrip}));
      if (span.empty()) continue;
      product<Into::decayed>(
          {tile_ + span.begin * kTile + i, 1, kTile}, {v_ + span.begin * columns_, columns_},
          {out_ + i * columns_, columns_}, kStrip, columns_, span.size(), decay_ + i);
    }
  }

  const AttentionForward& op_;
  const AttentionTask task_;
  const std::int64_t head_dim_, columns_;
  const QueryBlock queries_;
  const std::int64_t rows_;  // queries_.rows in whole vectors and strips
  float* const q_;
  float* const out_;
  float *k_ = nullptr, *v_ = nullptr, *tile_ = nullptr;
  std::uint32_t* words_ = nullptr;
  const std::uint32_t threshold_;
  alignas(64) float max_[kTile];
  alignas(64) float sum_[kTile];
  alignas(64) float decay_[kTile];
};

/// Blocks of queries that share a key/value head: their keys are staged once for all.
template <class T>
void forward_blocks(const AttentionForward& op, const AttentionTask* tasks, std::int64_t count,
                    float* scratch) {
  const AttentionTask& any = tasks[0];
  const std::int64_t head_dim = op.shape.head_dim;
  const std::int64_t columns = attention_columns(head_dim);
  Staged staged;
  staged.k = take(scratch, columns);
  staged.v = take(scratch, columns);
  staged.tile = take(scratch, kTile);
  staged.words = reinterpret_cast<std::uint32_t*>(take(scratch, kTile));
  std::array<std::optional<ForwardBlock<T>>, kAttentionBlocksTogether> blocks;
  for (std::int64_t n = 0; n < count; ++n) blocks[n].emplace(op, tasks[n], scratch);
  for (std::int64_t b = 0; b < attention_blocks(any.tk); ++b) {
    const KeyBlock keys(op.shape, any.sequence, any.tk, b);
    bool here = false;
    for (std::int64_t n = 0; n < count; ++n) {
      const Sight sight = blocks[n]->sight(keys);
      if (sight == Sight::none) continue;
      if (!std::exchange(here, true)) {
        const std::int64_t row = any.sequence * any.tk + keys.begin;
        const std::int64_t column = any.kv_head * head_dim;
        stage(op.k.row<T>(row) + column, op.k.row_stride, keys.rows, head_dim, staged.k);
        stage(op.v.row<T>(row) + column, op.v.row_stride, keys.rows, head_dim, staged.v);
      }
      blocks[n]->attend(keys, staged, sight == Sight::all);
    }
  }
  for (std::int64_t n = 0; n < count; ++n) blocks[n]->finish();
}

void forward_blocks_of(const AttentionForward& op, const AttentionTask* tasks, std::int64_t count,
                       float* scratch) {
  with_fast_type(op.q.dtype, [&]<class T>() { forward_blocks<T>(op, tasks, count, scratch); });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(forward_blocks_of);

void attention_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace) {
  if (op.q.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const AttentionShape& shape = op.shape;
  require_known_rows(shape);
  if (op.q.rows() == 0) return;
  const std::int64_t tq = op.q.rows() / shape.num_sequences;
  const std::int64_t tk = op.k.rows() / shape.num_sequences;
  const std::int64_t heads = shape.num_heads / shape.num_kv_heads;
  // Blocks of one key/value head, those of the same queries side by side.
  const std::int64_t blocks = attention_blocks(tq) * heads;
  const std::int64_t parts = (blocks + kAttentionBlocksTogether - 1) / kAttentionBlocksTogether;
#pragma omp parallel for schedule(dynamic) num_threads(ctx.threads)
  for (std::int64_t t = 0; t < shape.num_sequences * shape.num_kv_heads * parts; ++t) {
    const std::int64_t begin = (parts - 1 - t % parts) * kAttentionBlocksTogether;  // longest first
    const std::int64_t count = std::min(kAttentionBlocksTogether, blocks - begin);
    std::array<AttentionTask, kAttentionBlocksTogether> tasks;
    for (std::int64_t n = 0; n < count; ++n) {
      AttentionTask& task = tasks[n];
      task.sequence = t / parts / shape.num_kv_heads;
      task.kv_head = t / parts % shape.num_kv_heads;
      task.head = task.kv_head * heads + (begin + n) % heads;
      task.block = (begin + n) / heads;
      task.tq = tq;
      task.tk = tk;
    }
    HWY_DYNAMIC_DISPATCH(forward_blocks_of)
    (op, tasks.data(), count,
     workspace.as<float>() + omp_get_thread_num() * attention_forward_floats(shape.head_dim));
  }
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
