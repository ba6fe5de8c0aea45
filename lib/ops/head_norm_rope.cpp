#include "kernels/head_norm_rope.hpp"

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

kernels::NormedHeads normed_heads(const OpCtx& ctx, const HeadLayout& heads,
                                  const RopeTables& tables) {
  return {.q_heads = heads.num_heads,
          .head_dim = heads.head_dim,
          .rotary_dim = tables.rotary_dim,
          .cosine = tables.cosine,
          .sine = tables.sine,
          .position = ctx.rows->embedding_position};
}

Tensor qk_columns(const Tensor& qkv, const HeadLayout& heads) {
  return qkv.columns(0, heads.q_cols() + heads.kv_cols());
}

class HeadNormRopeNode final : public Node {
 public:
  HeadNormRopeNode(const HeadLayout& heads, const ParameterGroup& q_weight,
                   const ParameterGroup& k_weight, RopeTables tables)
      : Node("head norm and rope"),
        heads_(heads),
        q_weight_(&q_weight),
        k_weight_(&k_weight),
        tables_(std::move(tables)) {}

  void keep(Tensor qkv, Tensor rstd) {
    qkv_.set(std::move(qkv));
    rstd_.set(std::move(rstd));
  }

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    Tensor dqkv = std::move(dys[0]);
    require(dqkv.unique(), "head norm and rope: the gradient of qkv is shared");
    const Tensor dqk = qk_columns(dqkv, heads_);
    ctx.launch(kernels::HeadNormRopeBackward{.heads = normed_heads(ctx, heads_, tables_),
                                             .dy = dqk,
                                             .x = qk_columns(qkv_.get(ctx), heads_),
                                             .q_weight = q_weight_->compute(),
                                             .k_weight = k_weight_->compute(),
                                             .rstd = rstd_.get(ctx),
                                             .dx = dqk,
                                             .dq_weight = gradient_sink(ctx, *q_weight_),
                                             .dk_weight = gradient_sink(ctx, *k_weight_)});
    return {std::move(dqkv)};
  }

 private:
  HeadLayout heads_;
  const ParameterGroup *q_weight_, *k_weight_;
  RopeTables tables_;
  Saved qkv_{this, Part::input};
  Saved rstd_{this, Part::input};
};

}  // namespace

Var head_norm_rope(const OpCtx& ctx, const Var& qkv, const HeadLayout& heads,
                   const ParameterGroup& q_weight, const ParameterGroup& k_weight, double eps,
                   const RopeTables& tables) {
  const Tensor& x = qkv.tensor;
  Tensor y = ctx.allocate(x.shape(), x.dtype(), "head norm and rope");
  Tensor rstd = ctx.allocate({x.rows() * (heads.num_heads + heads.num_kv_heads)},
                             statistics_dtype(x.dtype()), "head norm rstd");
  ctx.launch(kernels::HeadNormRope{.heads = normed_heads(ctx, heads, tables),
                                   .x = qk_columns(x, heads),
                                   .q_weight = q_weight.compute(),
                                   .k_weight = k_weight.compute(),
                                   .y = qk_columns(y, heads),
                                   .rstd = rstd,
                                   .eps = eps});
  const std::int64_t v_col = heads.q_cols() + heads.kv_cols();
  ctx.launch(kernels::ScaleCast{.x = x.columns(v_col, heads.kv_cols()),
                                .y = y.columns(v_col, heads.kv_cols())});
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<HeadNormRopeNode>(heads, q_weight, k_weight, tables);
  node->keep(x, std::move(rstd));
  return ctx.tape->record_one(std::move(node), {&qkv}, std::move(y));
}

}  // namespace llmtrain::ops
