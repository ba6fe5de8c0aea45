#include "kernels/attention.hpp"

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/ops.hpp"
#include "lib/ops/ring_attention.hpp"
#include "lib/ops/sequence_parallel.hpp"

namespace llmtrain::ops {

namespace {

struct QkvViews {
  Tensor q, k, v;
  QkvViews(const Tensor& qkv, const HeadLayout& heads)
      : q(qkv.columns(0, heads.q_cols())),
        k(qkv.columns(heads.q_cols(), heads.kv_cols())),
        v(qkv.columns(heads.q_cols() + heads.kv_cols(), heads.kv_cols())) {}
};

// Rotates the q and k columns, which lie side by side, in place.
void rotate(const OpCtx& ctx, const Tensor& qkv, const HeadLayout& heads, const RopeTables& tables,
            bool inverse) {
  const Tensor qk = qkv.columns(0, heads.q_cols() + heads.kv_cols());
  ctx.launch(kernels::Rope{.x = qk,
                           .y = qk,
                           .cosine = tables.cosine,
                           .sine = tables.sine,
                           .position = ctx.rows->embedding_position,
                           .head_dim = heads.head_dim,
                           .rotary_dim = tables.rotary_dim,
                           .inverse = inverse});
}

class RopeNode final : public Node {
 public:
  RopeNode(const HeadLayout& heads, RopeTables tables)
      : Node("rope"), heads_(heads), tables_(std::move(tables)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    Tensor dqkv = std::move(dys[0]);
    require(dqkv.unique(), "rope: the gradient of qkv is shared");
    rotate(ctx, dqkv, heads_, tables_, true);
    return {std::move(dqkv)};
  }

 private:
  HeadLayout heads_;
  RopeTables tables_;
};

// Of the micro-batch's heads those of this rank, and the rows of all ranks that share them.
void share_heads(const OpCtx& ctx, const AttentionOptions& options,
                 kernels::AttentionShape& shape) {
  const Communicator& sharers = ctx.mesh->head_sharers();
  const HeadLayout share = share_of(options.heads, sharers.size());
  const std::int64_t first = share.num_heads * sharers.rank();
  shape.num_heads = share.num_heads;
  shape.num_kv_heads = share.num_kv_heads;
  if (options.alibi != nullptr) shape.alibi = options.alibi->columns(first, share.num_heads);
  if (options.sinks != nullptr) {
    shape.sink = options.sinks->compute().columns(first, share.num_heads);
  }
  shape.q_position = shape.k_position = ctx.rows->group_position;
  shape.q_document_begin = ctx.rows->group_document_begin;
  shape.dropout.heads = shape.dropout.heads_of_layer(options.heads.num_heads);
  shape.dropout.first_head += first;
}

// Rows and heads of a call: where ranks share heads, the rows of all of these and some heads.
kernels::AttentionShape shape_of(const OpCtx& ctx, const AttentionOptions& options) {
  const RowMap& rows = *ctx.rows;
  const double p = ctx.training ? options.dropout : 0;
  kernels::AttentionShape shape{
      .num_sequences = rows.num_sequences,
      .num_heads = options.heads.num_heads,
      .num_kv_heads = options.heads.num_kv_heads,
      .head_dim = options.heads.head_dim,
      .scale = options.scale,
      .softcap = options.softcap,
      .alibi = options.alibi != nullptr ? options.alibi->view() : View{},
      .sink = options.sinks != nullptr ? options.sinks->compute().view() : View{},
      .window = options.window,
      .q_position = rows.position,
      .q_document_begin = rows.document_begin,
      .k_position = rows.position,
      .q_sample = rows.sample,
      .known_rows = rows.known,
      .dropout = {
          .p = p,
          .key = p > 0 ? philox_key(ctx.step.seed, "dropout", options.dropout_name) : PhiloxKey{},
          .step = ctx.step.step,
          .seq_len = rows.seq_len,
          .first_head = options.first_head,
          .heads = options.heads_of_layer,
          .scalars = ctx.step.scalars}};
  if (shares_sequences(ctx, SequenceSharing::ulysses)) share_heads(ctx, options, shape);
  if (shares_sequences(ctx, SequenceSharing::all_gather)) {
    shape.k_position = rows.all_position;
    shape.known_rows = kernels::KnownRows::nothing;
  }
  return shape;
}
// Gradient of the sinks of the call's heads.
View dsink_of(const OpCtx& ctx, const AttentionOptions& options) {
  if (options.sinks == nullptr) return {};
  if (!shares_sequences(ctx, SequenceSharing::ulysses)) return gradient_sink(ctx, *options.sinks);
  const Communicator& sharers = ctx.mesh->head_sharers();
  const std::int64_t heads = share_of(options.heads, sharers.size()).num_heads;
  return gradient_sink(ctx, *options.sinks).columns(heads * sharers.rank(), heads);
}

// Keys and values of a call: those of its queries' rows, or of all where ranks share these.
struct KeyValues {
  Tensor all;  // side by side; undefined where they are those of the queries' rows
  Tensor k, v;
  KeyValues(const OpCtx& ctx, const QkvViews& own) : k(own.k), v(own.v) {
    if (!shares_sequences(ctx, SequenceSharing::all_gather)) return;
    const std::int64_t cols = own.k.cols();
    const Tensor pair = ctx.allocate({own.k.rows(), 2 * cols}, own.k.dtype(), "own k and v");
    ctx.launch(kernels::ScaleCast{.x = own.k, .y = pair.columns(0, cols)});
    ctx.launch(kernels::ScaleCast{.x = own.v, .y = pair.columns(cols, cols)});
    all = gather_sequences(ctx, pair, "attention");
    k = all.columns(0, cols);
    v = all.columns(cols, cols);
  }
};

// Ranks that share sequences by their heads have some of the heads in a call.
HeadLayout heads_of_call(const OpCtx& ctx, const HeadLayout& heads) {
  if (!shares_sequences(ctx, SequenceSharing::ulysses)) return heads;
  return share_of(heads, ctx.mesh->head_sharers().size());
}

/// Options that outlive the call which they are of.
class OptionsWithName {
 public:
  explicit OptionsWithName(const AttentionOptions& options)
      : options_(options), dropout_name_(options.dropout_name) {}
  AttentionOptions get() const {
    AttentionOptions options = options_;
    options.dropout_name = dropout_name_;
    return options;
  }

 private:
  AttentionOptions options_;
  std::string dropout_name_;
};

class AttentionNode final : public Node {
 public:
  AttentionNode(OptionsWithName options, Tensor qkv, const Var& out, Tensor lse)
      : Node("attention"), options_(std::move(options)) {
    qkv_.set(std::move(qkv));
    out_.set(out);
    lse_.set(std::move(lse));
  }
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    const Tensor qkv = qkv_.get(ctx);
    Tensor dqkv = ctx.allocate(qkv.shape(), qkv.dtype(), "attention dqkv");
    const AttentionOptions options = options_.get();
    const HeadLayout heads = heads_of_call(ctx, options.heads);
    const QkvViews x(qkv, heads), dx(dqkv, heads);
    const KeyValues keys(ctx, x);
    const std::int64_t cols = heads.kv_cols();
    Tensor dkeys, dk = dx.k, dv = dx.v;
    if (keys.all.defined()) {
      dkeys = ctx.allocate(keys.all.shape(), qkv.dtype(), "gradient of all k and v");
      dk = dkeys.columns(0, cols);
      dv = dkeys.columns(cols, cols);
    }
    const Tensor out = out_.get(ctx), lse = lse_.get(ctx);
    const kernels::AttentionBackward backward{.shape = shape_of(ctx, options),
                                              .q = x.q,
                                              .k = keys.k,
                                              .v = keys.v,
                                              .out = out,
                                              .lse = lse,
                                              .dout = dys[0],
                                              .dq = dx.q,
                                              .dk = dk,
                                              .dv = dv,
                                              .dsink = dsink_of(ctx, options)};
    if (shares_sequences(ctx, SequenceSharing::ring)) {
      ring_attention_backward(ctx, backward);
    } else {
      ctx.launch(backward);
    }
    if (dkeys.defined()) {
      const Tensor own = reduce_sequences(ctx, dkeys, "attention");
      ctx.launch(kernels::ScaleCast{.x = own.columns(0, cols), .y = dx.k});
      ctx.launch(kernels::ScaleCast{.x = own.columns(cols, cols), .y = dx.v});
    }
    return {std::move(dqkv)};
  }

 private:
  OptionsWithName options_;
  Saved qkv_{this, Part::input};
  Saved out_{this, Part::input};
  Saved lse_{this, Part::input};
};

}  // namespace

Var rope(const OpCtx& ctx, const Var& qkv, const HeadLayout& heads, const RopeTables& tables) {
  rotate(ctx, qkv.tensor, heads, tables, false);
  if (ctx.tape == nullptr) return {qkv.tensor, -1, nullptr};
  return ctx.tape->record_one(std::make_unique<RopeNode>(heads, tables), {&qkv}, qkv.tensor);
}

namespace {

struct Attended {
  Tensor out, lse;
};

// Of the call's rows and heads.
Attended attend(const OpCtx& ctx, const Tensor& qkv, const AttentionOptions& options) {
  const HeadLayout heads = heads_of_call(ctx, options.heads);
  const kernels::AttentionShape shape = shape_of(ctx, options);
  const std::int64_t rows = shape.q_position.numel();
  Attended to{
      .out = ctx.allocate({rows, heads.q_cols()}, qkv.dtype(), "attention"),
      .lse = ctx.allocate({shape.num_sequences, heads.num_heads, rows / shape.num_sequences},
                          statistics_dtype(qkv.dtype()), "attention lse")};
  const QkvViews x(qkv, heads);
  const KeyValues keys(ctx, x);
  const kernels::AttentionForward forward{
      .shape = shape, .q = x.q, .k = keys.k, .v = keys.v, .out = to.out, .lse = to.lse};
  if (shares_sequences(ctx, SequenceSharing::ring)) {
    ring_attention(ctx, forward);
  } else {
    ctx.launch(forward);
  }
  return to;
}

// Recorded. What is computed again is the output; its log-sum-exps are kept.
Var attend(const OpCtx& ctx, const Var& qkv, const AttentionOptions& options) {
  Attended attended = attend(ctx, qkv.tensor, options);
  Var out{std::move(attended.out), -1, nullptr};
  if (ctx.tape == nullptr) return out;
  const OptionsWithName kept(options);
  if (ctx.recomputes("attention")) {
    out.source = made_again(
        {qkv.tensor, -1, nullptr},
        [kept](const OpCtx& again, const Tensor& of) { return attend(again, of, kept.get()).out; });
  }
  auto node = std::make_unique<AttentionNode>(kept, qkv.tensor, out, std::move(attended.lse));
  Var recorded = ctx.tape->record_one(std::move(node), {&qkv}, out.tensor);
  recorded.source = std::move(out.source);
  return recorded;
}

}  // namespace

Var attention(const OpCtx& ctx, const Var& qkv, const AttentionOptions& options) {
  const HeadLayout& heads = options.heads;
  require(qkv.tensor.cols() == heads.cols() && qkv.tensor.rows() == ctx.rows->rows(),
          "attention: qkv {} for {} columns and {} rows", to_string(qkv.tensor.shape()),
          heads.cols(), ctx.rows->rows());
  if (!shares_sequences(ctx, SequenceSharing::ulysses)) return attend(ctx, qkv, options);
  const int ranks = ctx.mesh->head_sharers().size();
  const Var some = rows_to_heads(ctx, qkv, shares_of_qkv(heads, ranks));
  return heads_to_rows(ctx, attend(ctx, some, options), shares_of_heads(heads, ranks));
}

Tensor cached_attention(const OpCtx& ctx, const Tensor& qkv, const AttentionOptions& options,
                        KvCache& cache) {
  const HeadLayout& heads = options.heads;
  const RowMap& rows = *ctx.rows;
  require(ctx.tape == nullptr && rows.num_sequences == 1,
          "the cache decodes one sequence, unrecorded");
  require(cache.length + rows.rows() <= cache.capacity, "KV cache of {} positions is full",
          cache.capacity);
  const QkvViews x(qkv, heads);
  const Tensor k_new = cache.k.row_range(cache.length, rows.rows());
  const Tensor v_new = cache.v.row_range(cache.length, rows.rows());
  ctx.launch(kernels::ScaleCast{.x = x.k, .y = k_new});
  ctx.launch(kernels::ScaleCast{.x = x.v, .y = v_new});
  const std::int64_t length = cache.length + rows.rows();
  kernels::AttentionShape shape = shape_of(ctx, options);
  shape.k_position = cache.position.columns(0, length);
  shape.known_rows = kernels::KnownRows::nothing;  // what is known is not of the cache
  Tensor out = ctx.allocate({rows.rows(), heads.q_cols()}, qkv.dtype(), "attention");
  const Tensor lse = ctx.allocate({1, heads.num_heads, rows.rows()}, statistics_dtype(qkv.dtype()),
                                  "attention lse");
  ctx.launch(kernels::AttentionForward{.shape = shape,
                                       .q = x.q,
                                       .k = cache.k.row_range(0, length),
                                       .v = cache.v.row_range(0, length),
                                       .out = out,
                                       .lse = lse});
  return out;
}

}  // namespace llmtrain::ops
