#include "lib/ops/sequence_parallel.hpp"

#include "kernels/elementwise.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::ops {

bool shares_sequences(const OpCtx& ctx, SequenceSharing how) {
  if (ctx.mesh == nullptr || ctx.rows == nullptr || !ctx.rows->in_parts()) return false;
  const MeshShape& shape = ctx.mesh->shape();
  if (how == SequenceSharing::ulysses) return shape.head_sharers() > 1;
  return shape.sp_algo == how && shape.row_groups() > 1;
}

Tensor gather_sequences(const OpCtx& ctx, const Tensor& own, std::string_view site) {
  const RowMap& rows = *ctx.rows;
  const std::int64_t length = own.rows() / rows.num_sequences;
  Tensor all = ctx.allocate({rows.num_sequences * rows.seq_len, own.cols()}, own.dtype(),
                            "rows of all sp ranks");
  for (std::int64_t s = 0; s < rows.num_sequences; ++s) {
    ctx.mesh->row_sharers()
        .all_gather(own.row_range(s * length, length),
                    all.row_range(s * rows.seq_len, rows.seq_len), site)
        .wait();
  }
  return all;
}

Tensor reduce_sequences(const OpCtx& ctx, const Tensor& terms, std::string_view site) {
  const RowMap& rows = *ctx.rows;
  Communicator& sharers = ctx.mesh->row_sharers();
  const std::int64_t length = rows.seq_len / sharers.size();
  Tensor own =
      ctx.allocate({rows.num_sequences * length, terms.cols()}, terms.dtype(), "own rows of a sum");
  for (std::int64_t s = 0; s < rows.num_sequences; ++s) {
    sharers
        .reduce_scatter(terms.row_range(s * rows.seq_len, rows.seq_len),
                        own.row_range(s * length, length), site)
        .wait();
  }
  return own;
}

HeadLayout share_of(const HeadLayout& heads, int ranks) {
  const bool shares_kv = heads.num_kv_heads % ranks == 0 || ranks % heads.num_kv_heads == 0;
  if (heads.num_heads % ranks != 0 || !shares_kv) {
    throw RefusedKey("parallelism.sp",
                     fmt::format("{} ranks cannot share {} heads and {} key/value heads", ranks,
                                 heads.num_heads, heads.num_kv_heads),
                     "parallelism.sp_algo: all_gather can, whatever the heads");
  }
  return {.num_heads = heads.num_heads / ranks,
          .num_kv_heads = std::max<std::int64_t>(1, heads.num_kv_heads / ranks),
          .head_dim = heads.head_dim};
}

HeadShares shares_of_heads(const HeadLayout& heads, int ranks) {
  const std::int64_t count = share_of(heads, ranks).q_cols();
  HeadShares shares{.of_rank = {}, .whole_cols = heads.q_cols(), .share_cols = count};
  for (int r = 0; r < ranks; ++r) {
    shares.of_rank.push_back({{.whole = r * count, .share = 0, .count = count}});
  }
  return shares;
}

HeadShares shares_of_qkv(const HeadLayout& heads, int ranks) {
  const HeadLayout share = share_of(heads, ranks);
  const std::int64_t of_head = std::max<std::int64_t>(1, ranks / heads.num_kv_heads);
  HeadShares shares{.of_rank = {}, .whole_cols = heads.cols(), .share_cols = share.cols()};
  for (int r = 0; r < ranks; ++r) {
    // Where there are fewer key/value heads than ranks, neighbours have the same.
    const std::int64_t kv = r / of_head * share.kv_cols();
    const bool adds = r % of_head != 0;
    const std::int64_t k = share.q_cols(), v = k + share.kv_cols();
    shares.of_rank.push_back(
        {{.whole = r * share.q_cols(), .share = 0, .count = share.q_cols()},
         {.whole = heads.q_cols() + kv, .share = k, .count = share.kv_cols(), .adds = adds},
         {.whole = heads.q_cols() + heads.kv_cols() + kv,
          .share = v,
          .count = share.kv_cols(),
          .adds = adds}});
  }
  return shares;
}

namespace {

// Rows of a sequence in a buffer of the ranks that share heads.
std::int64_t shared_rows(const OpCtx& ctx) {
  return ctx.rows->rows_per_sequence * ctx.mesh->head_sharers().size();
}

// Of these, the ones that come from, or go to, one rank.
Tensor block_of(const OpCtx& ctx, const Tensor& all, std::int64_t sequence, std::size_t rank) {
  const std::int64_t length = ctx.rows->rows_per_sequence;
  const auto r = static_cast<std::int64_t>(rank);
  return all.row_range(sequence * shared_rows(ctx) + r * length, length);
}

Tensor exchange(const OpCtx& ctx, const Tensor& parts, std::string_view site) {
  const std::int64_t length = shared_rows(ctx);
  Tensor got = ctx.allocate(parts.shape(), parts.dtype(), "parts of all sp ranks");
  for (std::int64_t s = 0; s < ctx.rows->num_sequences; ++s) {
    ctx.mesh->head_sharers()
        .all_to_all(parts.row_range(s * length, length), got.row_range(s * length, length), site)
        .wait();
  }
  return got;
}

Tensor to_heads(const OpCtx& ctx, const Tensor& x, const HeadShares& shares) {
  const RowMap& rows = *ctx.rows;
  const Tensor parts = ctx.allocate({rows.num_sequences * shared_rows(ctx), shares.share_cols},
                                    x.dtype(), "parts for all sp ranks");
  for (std::int64_t s = 0; s < rows.num_sequences; ++s) {
    const Tensor own = x.row_range(s * rows.rows_per_sequence, rows.rows_per_sequence);
    for (std::size_t r = 0; r < shares.of_rank.size(); ++r) {
      const Tensor part = block_of(ctx, parts, s, r);
      for (const SharedColumns& columns : shares.of_rank[r]) {
        ctx.launch(kernels::ScaleCast{.x = own.columns(columns.whole, columns.count),
                                      .y = part.columns(columns.share, columns.count)});
      }
    }
  }
  return exchange(ctx, parts, "rows_to_heads");
}

Tensor to_rows(const OpCtx& ctx, const Tensor& x, const HeadShares& shares) {
  const RowMap& rows = *ctx.rows;
  const Tensor parts = exchange(ctx, x, "heads_to_rows");
  Tensor whole = ctx.allocate({rows.rows(), shares.whole_cols}, x.dtype(), "own rows of all heads");
  for (std::int64_t s = 0; s < rows.num_sequences; ++s) {
    const Tensor own = whole.row_range(s * rows.rows_per_sequence, rows.rows_per_sequence);
    for (std::size_t r = 0; r < shares.of_rank.size(); ++r) {
      const Tensor part = block_of(ctx, parts, s, r);
      for (const SharedColumns& columns : shares.of_rank[r]) {
        ctx.launch(kernels::ScaleCast{.x = part.columns(columns.share, columns.count),
                                      .y = own.columns(columns.whole, columns.count),
                                      .accumulate = columns.adds});
      }
    }
  }
  return whole;
}

class RowsToHeadsNode final : public Node {
 public:
  explicit RowsToHeadsNode(HeadShares shares) : Node("rows_to_heads"), shares_(std::move(shares)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {to_rows(ctx, dys[0], shares_)};
  }

 private:
  HeadShares shares_;
};

class HeadsToRowsNode final : public Node {
 public:
  explicit HeadsToRowsNode(HeadShares shares) : Node("heads_to_rows"), shares_(std::move(shares)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {to_heads(ctx, dys[0], shares_)};
  }

 private:
  HeadShares shares_;
};

}  // namespace

Var rows_to_heads(const OpCtx& ctx, const Var& x, const HeadShares& shares) {
  Tensor y = to_heads(ctx, x.tensor, shares);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<RowsToHeadsNode>(shares), {&x}, std::move(y));
}

Var heads_to_rows(const OpCtx& ctx, const Var& x, const HeadShares& shares) {
  Tensor y = to_rows(ctx, x.tensor, shares);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  Var result = ctx.tape->record_one(std::make_unique<HeadsToRowsNode>(shares), {&x}, std::move(y));
  if (x.source != nullptr) {
    result.source = made_again(
        x, [shares](const OpCtx& again, const Tensor& of) { return to_rows(again, of, shares); });
  }
  return result;
}

}  // namespace llmtrain::ops
