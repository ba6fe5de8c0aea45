#include <atomic>
#include <cmath>
#include <omp.h>
#include <thread>
#include <utility>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/attention.hpp"
#include "kernels/cpu/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/attention_backward.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/attention_dropout-inl.h"
#include "kernels/cpu/fast/attention_products-inl.h"

#ifndef LLMTRAIN_ATTENTION_BACKWARD_ONCE
#define LLMTRAIN_ATTENTION_BACKWARD_ONCE
namespace llmtrain::kernels::fast {

/// What the threads of one backward share.
struct SharedGradients {
  float* delta;        // [S, H, Tq]
  View dq;             // FP32 sums of dq: dq itself, or scratch for narrower types
  std::int32_t* turn;  // [S, G, query blocks]: how many key blocks have passed

  /// A block of dq is a sum over key blocks. It is added up in ascending order of key blocks: each
  /// waits for the one before, whoever computes that.
  static void await(std::int32_t& turn, std::int64_t block) {
    const std::atomic_ref<std::int32_t> seen(turn);
    while (seen.load(std::memory_order_acquire) != block) std::this_thread::yield();
  }
  static void pass(std::int32_t& turn, std::int64_t block) {
    std::atomic_ref<std::int32_t>(turn).store(static_cast<std::int32_t>(block + 1),
                                              std::memory_order_release);
  }
};

}  // namespace llmtrain::kernels::fast
#endif

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// One block of keys of one key/value head against all queries of its group: its dk and dv, and its
/// part of dq. Tiles are [query][key], so that keys and values need a transposed copy, once.
template <class T>
class BackwardBlock {
 public:
  BackwardBlock(const AttentionBackward& op, const AttentionTask& task,
                const SharedGradients& shared, float* scratch)
      : op_(op),
        task_(task),
        shared_(shared),
        head_dim_(op.shape.head_dim),
        columns_(attention_columns(head_dim_)),
        heads_(op.shape.num_heads / op.shape.num_kv_heads),
        keys_(op.shape, task.sequence, task.tk, task.block),
        threshold_(dropout_threshold(op.shape.dropout.p)) {
    k_ = take(scratch, columns_);
    k_transposed_ = take(scratch, columns_);
    v_transposed_ = take(scratch, columns_);
    dk_ = take(scratch, columns_);
    dv_ = take(scratch, columns_);
    q_ = take(scratch, columns_);
    dout_ = take(scratch, columns_);
    dq_ = take(scratch, columns_);
    p_ = take(scratch, kTile);
    ds_ = take(scratch, kTile);
    words_ = reinterpret_cast<std::uint32_t*>(take(scratch, kTile));
  }

  void run() {
    const std::int64_t row = task_.sequence * task_.tk + keys_.begin;
    const std::int64_t column = task_.kv_head * head_dim_;
    const auto scale = static_cast<float>(op_.shape.scale);
    stage(op_.v.row<T>(row) + column, op_.v.row_stride, keys_.rows, head_dim_, k_);
    stage_transposed(k_, keys_.rows, head_dim_, 1, v_transposed_);
    stage(op_.k.row<T>(row) + column, op_.k.row_stride, keys_.rows, head_dim_, k_);
    stage_transposed(k_, keys_.rows, head_dim_, scale, k_transposed_);
    std::fill_n(dk_, kTile * columns_, 0.0f);
    std::fill_n(dv_, kTile * columns_, 0.0f);
    const std::int64_t blocks = attention_blocks(task_.tq);
    std::int32_t* turn =
        shared_.turn + (task_.sequence * op_.shape.num_kv_heads + task_.kv_head) * blocks;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const QueryBlock queries(op_.shape, task_.sequence, task_.tq, b);
      const Sight sight = queries.sight(keys_);
      for (std::int64_t h = 0; h < heads_ && sight != Sight::none; ++h) {
        attend(queries, task_.kv_head * heads_ + h, sight == Sight::all);
        if (h == 0) SharedGradients::await(turn[b], task_.block);
        add_dq(queries, task_.kv_head * heads_ + h, scale);
      }
      if (sight == Sight::none) SharedGradients::await(turn[b], task_.block);
      SharedGradients::pass(turn[b], task_.block);
    }
    if (op_.dk.dtype == DType::f32) {
      write<float>(dk_, scale, op_.dk, row, column);
      write<float>(dv_, 1, op_.dv, row, column);
    } else {
      write<T>(dk_, scale, op_.dk, row, column);
      write<T>(dv_, 1, op_.dv, row, column);
    }
  }

 private:
  static float* take(float*& scratch, std::int64_t columns) {
    return std::exchange(scratch, scratch + kTile * columns);
  }

  /// Adds the part of one block of queries of one head to dk and dv, and leaves its part of dq.
  void attend(const QueryBlock& queries, std::int64_t head, bool whole) {
    const std::int64_t row = task_.sequence * task_.tq + queries.begin;
    const std::int64_t column = head * head_dim_;
    stage(op_.q.row<T>(row) + column, op_.q.row_stride, queries.rows, head_dim_, q_);
    stage(op_.dout.row<T>(row) + column, op_.dout.row_stride, queries.rows, head_dim_, dout_);
    if (op_.shape.dropout.p > 0) {
      dropout_words<false>(op_.shape, task_.sequence, head, queries, keys_, words_);
    }
    for (std::int64_t i = 0; i < queries.rows; i += kStrip) {
      const Span span = whole ? Span{0, keys_.rows} : keys_.seen_by(queries.seen({i, i + kStrip}));
      const std::int64_t begin = span.begin / kLanes * kLanes;
      const std::int64_t cols = span.end - begin;
      product<Into::fresh>({q_ + i * columns_, columns_, 1}, {k_transposed_ + begin, kTile},
                           {p_ + i * kTile + begin, kTile}, kStrip, cols, head_dim_);
      product<Into::fresh>({dout_ + i * columns_, columns_, 1}, {v_transposed_ + begin, kTile},
                           {ds_ + i * kTile + begin, kTile}, kStrip, cols, head_dim_);
      for (std::int64_t n = i; n < std::min(i + kStrip, queries.rows); ++n) {
        score_gradients(queries, head, n, {begin, span.end}, whole);
      }
    }
    accumulate(queries, whole);
  }

  /// One row of the tile: p = exp(s - lse) and ds = p (dp - delta), with dropout and the cap's
  /// slope; zero where the query sees nothing.
  void score_gradients(const QueryBlock& queries, std::int64_t head, std::int64_t i,
                       const Span& span, bool whole) {
    const F f;
    const hn::RebindToSigned<F> word;
    const std::int64_t statistic =
        (task_.sequence * op_.shape.num_heads + head) * task_.tq + queries.begin + i;
    const V lse = hn::Set(f, op_.lse.as<float>()[statistic]);
    const V delta = hn::Set(f, shared_.delta[statistic]);
    const V scale_kept = hn::Set(f, static_cast<float>(1 / (1 - op_.shape.dropout.p)));
    const auto first = hn::Set(word, queries.first[i]);
    const auto last = hn::Set(word, queries.last[i]);
    float* p_row = p_ + i * kTile;
    float* ds_row = ds_ + i * kTile;
    const auto softcap = static_cast<float>(op_.shape.softcap);
    const float slope = op_.shape.alibi.defined() ? op_.shape.alibi.as<float>()[head] : 0;
    const V query_position = float_position(queries.last[i]);
    for (std::int64_t j = span.begin; j < span.end; j += kLanes) {
      V score = hn::LoadU(f, p_row + j);
      if (softcap > 0) score = soft_cap(score, softcap);
      V biased = score;
      if (slope != 0) {
        const V distance = hn::Sub(float_positions(keys_.position.data() + j), query_position);
        biased = hn::MulAdd(hn::Set(f, slope), distance, score);
      }
      V p = exp<false>(hn::Sub(biased, lse));
      V p_kept = p;
      V dp = hn::LoadU(f, ds_row + j);
      if (op_.shape.dropout.p > 0) {
        const auto keep = kept(words_ + i * kTile + j, threshold_);
        p_kept = hn::IfThenElseZero(keep, hn::Mul(p, scale_kept));
        dp = hn::IfThenElseZero(keep, hn::Mul(dp, scale_kept));
      }
      V ds = hn::Mul(p, hn::Sub(dp, delta));
      if (softcap > 0) ds = hn::Mul(ds, soft_cap_slope(score, softcap));
      if (!whole) {
        const auto position = hn::LoadU(word, keys_.position.data() + j);
        const auto hidden =
            hn::RebindMask(f, hn::Or(hn::Lt(position, first), hn::Gt(position, last)));
        p_kept = hn::IfThenZeroElse(hidden, p_kept);
        ds = hn::IfThenZeroElse(hidden, ds);
      }
      hn::StoreU(p_kept, f, p_row + j);
      hn::StoreU(ds, f, ds_row + j);
    }
    if (whole) return;
    // A strip of keys may be read over queries that do not see it.
    const std::int64_t end = round_up(span.end, kLanes);
    std::fill(p_row, p_row + span.begin, 0.0f);
    std::fill(ds_row, ds_row + span.begin, 0.0f);
    std::fill(p_row + end, p_row + kTile, 0.0f);
    std::fill(ds_row + end, ds_row + kTile, 0.0f);
  }

  /// dv += p^T dout, dk += ds^T q, and this block's ds k.
  void accumulate(const QueryBlock& queries, bool whole) {
    for (std::int64_t j = 0; j < keys_.rows; j += kStrip) {
      const Span span = whole ? Span{0, queries.rows} : queries.seeing(keys_.strip[j / kStrip]);
      if (span.empty()) continue;
      const std::int64_t first = span.begin * kTile + j;
      product<Into::sum>({p_ + first, 1, kTile}, {dout_ + span.begin * columns_, columns_},
                         {dv_ + j * columns_, columns_}, kStrip, columns_, span.size());
      product<Into::sum>({ds_ + first, 1, kTile}, {q_ + span.begin * columns_, columns_},
                         {dk_ + j * columns_, columns_}, kStrip, columns_, span.size());
    }
    for (std::int64_t i = 0; i < queries.rows; i += kStrip) {
      const Span span = whole ? Span{0, keys_.rows} : keys_.seen_by(queries.seen({i, i + kStrip}));
      product<Into::fresh>({ds_ + i * kTile + span.begin, kTile, 1},
                           {k_ + span.begin * columns_, columns_}, {dq_ + i * columns_, columns_},
                           kStrip, columns_, span.size());
    }
  }

  void add_dq(const QueryBlock& queries, std::int64_t head, float scale) {
    const std::int64_t row = task_.sequence * task_.tq + queries.begin;
    const V factor = hn::Set(F(), scale);
    for (std::int64_t i = 0; i < queries.rows; ++i) {
      float* sum = shared_.dq.row<float>(row + i) + head * head_dim_;
      for_vectors(head_dim_, [&](std::int64_t d, auto lanes) {
        const V part = load(dq_ + i * columns_ + d);
        store(hn::MulAdd(part, factor, load(sum + d, lanes)), sum + d, lanes);
      });
    }
  }

  template <class E>
  void write(const float* sum, float scale, const View& to, std::int64_t row, std::int64_t column) {
    const V factor = hn::Set(F(), scale);
    for (std::int64_t j = 0; j < keys_.rows; ++j) {
      E* target = to.row<E>(row + j) + column;
      for_vectors(head_dim_, [&](std::int64_t d, auto lanes) {
        store(hn::Mul(load(sum + j * columns_ + d), factor), target + d, lanes);
      });
    }
  }

  const AttentionBackward& op_;
  const AttentionTask task_;
  const SharedGradients& shared_;
  const std::int64_t head_dim_, columns_, heads_;
  const KeyBlock keys_;
  const std::uint32_t threshold_;
  float *k_, *k_transposed_, *v_transposed_, *dk_, *dv_, *q_, *dout_, *dq_, *p_, *ds_;
  std::uint32_t* words_;
};

/// delta = rowsum(dout * out) of every head of query row `row`; dq of the row starts at zero.
template <class T>
void begin_row(const AttentionBackward& op, const SharedGradients& shared, std::int64_t row) {
  const std::int64_t head_dim = op.shape.head_dim;
  const std::int64_t tq = op.q.rows() / op.shape.num_sequences;
  const T* out = op.out.row<T>(row);
  const T* dout = op.dout.row<T>(row);
  for (std::int64_t h = 0; h < op.shape.num_heads; ++h) {
    V sum = hn::Zero(F());
    for_vectors(head_dim, [&](std::int64_t d, auto lanes) {
      const std::int64_t at = h * head_dim + d;
      sum = hn::MulAdd(load(out + at, lanes), load(dout + at, lanes), sum);
    });
    shared.delta[(row / tq * op.shape.num_heads + h) * tq + row % tq] = sum_of_lanes(sum);
  }
  std::fill_n(shared.dq.row<float>(row), shared.dq.cols(), 0.0f);
}

/// dq of a row from its FP32 sum.
void end_row(const AttentionBackward& op, const SharedGradients& shared, std::int64_t row) {
  with_fast_type(op.dq.dtype, [&]<class T>() {
    for_vectors(op.dq.cols(), [&](std::int64_t d, auto lanes) HWY_ATTR {
      store(load(shared.dq.row<float>(row) + d, lanes), op.dq.row<T>(row) + d, lanes);
    });
  });
}

void begin_row_of(const AttentionBackward& op, const SharedGradients& shared, std::int64_t row) {
  with_fast_type(op.q.dtype, [&]<class T>() { begin_row<T>(op, shared, row); });
}

void backward_block(const AttentionBackward& op, const AttentionTask& task,
                    const SharedGradients& shared, float* scratch) {
  with_fast_type(op.q.dtype, [&]<class T>() { BackwardBlock<T>(op, task, shared, scratch).run(); });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(begin_row_of);
HWY_EXPORT(end_row);
HWY_EXPORT(backward_block);

namespace {

/// Threads take tasks (sequence, key/value head, key block) in ascending order, so that what a task
/// waits for is finished or in somebody's hands.
void run_blocks(int threads, const AttentionBackward& op, const SharedGradients& shared,
                float* scratch) {
  const AttentionShape& shape = op.shape;
  const std::int64_t tq = op.q.rows() / shape.num_sequences;
  const std::int64_t tk = op.k.rows() / shape.num_sequences;
  const std::int64_t blocks = attention_blocks(tk);
  const std::int64_t heads = shape.num_sequences * shape.num_kv_heads;
  // Whole heads at a time when there are enough of them: then nobody waits.
  const bool whole_heads = heads % threads == 0 || heads >= 4 * threads;
  const std::int64_t chunk = whole_heads ? blocks : 1;
  std::atomic<std::int64_t> next = 0;
#pragma omp parallel num_threads(threads)
  {
    float* own = scratch + omp_get_thread_num() * attention_backward_floats(shape.head_dim);
    for (std::int64_t c = next++; c * chunk < heads * blocks; c = next++) {
      for (std::int64_t t = c * chunk; t < (c + 1) * chunk; ++t) {
        AttentionTask task;
        task.sequence = t / blocks / shape.num_kv_heads;
        task.kv_head = t / blocks % shape.num_kv_heads;
        task.block = t % blocks;
        task.tq = tq;
        task.tk = tk;
        HWY_DYNAMIC_DISPATCH(backward_block)(op, task, shared, own);
      }
    }
  }
}

void sink_gradients(int threads, const AttentionBackward& op, const float* delta) {
  const AttentionShape& shape = op.shape;
  const std::int64_t tq = op.q.rows() / shape.num_sequences;
  parallel_blocks(threads, shape.num_heads, 1, [&](std::int64_t h, std::int64_t) {
    const auto sink = sink_of<float>(shape, h);
    double sum = 0;
    for (std::int64_t s = 0; s < shape.num_sequences; ++s) {
      const std::int64_t first = (s * shape.num_heads + h) * tq;
      for (std::int64_t i = first; i < first + tq; ++i) {
        sum += std::exp(static_cast<double>(sink) - op.lse.as<float>()[i]) * delta[i];
      }
    }
    op.dsink.as<float>()[h] -= static_cast<float>(sum);
  });
}

}  // namespace

void attention_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace) {
  if (op.q.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const AttentionShape& shape = op.shape;
  if (shape.num_sequences == 0) return;
  const std::int64_t tq = op.q.rows() / shape.num_sequences;
  const bool direct = op.dq.dtype == DType::f32;
  const AttentionBackwardShared sizes(shape.num_sequences, tq, shape.num_heads, shape.head_dim,
                                      direct);
  SharedGradients shared;
  shared.delta = workspace.as<float>();
  shared.turn = reinterpret_cast<std::int32_t*>(shared.delta + sizes.delta_floats);
  shared.dq = op.dq;
  if (!direct) {
    shared.dq.data = shared.delta + sizes.delta_floats + sizes.counter_floats;
    shared.dq.dtype = DType::f32;
    shared.dq.row_stride = op.dq.cols();
  }
  std::fill_n(shared.turn, sizes.counter_floats, 0);
  constexpr std::int64_t kRows = 16;
  parallel_blocks(ctx.threads, op.q.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(begin_row_of)(op, shared, i);
  });
  if (shape.sink.defined()) sink_gradients(ctx.threads, op, shared.delta);
  run_blocks(ctx.threads, op, shared, workspace.as<float>() + sizes.floats());
  if (direct) return;
  parallel_blocks(ctx.threads, op.q.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(end_row)(op, shared, i);
  });
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
