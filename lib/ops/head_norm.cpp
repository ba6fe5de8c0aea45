#include <array>

#include "kernels/norm.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

// The q or k columns of a fused row, and the weight of their norm.
struct HeadColumns {
  std::int64_t first_col, num_heads;
  const ParameterGroup* weight;
};

class HeadNormNode final : public Node {
 public:
  HeadNormNode(std::vector<HeadColumns> parts, std::int64_t head_dim)
      : Node("head norm"), parts_(std::move(parts)), head_dim_(head_dim) {}

  void keep(Tensor qkv, std::vector<Tensor> rstd) {
    qkv_.set(std::move(qkv));
    q_rstd_.set(std::move(rstd[0]));
    k_rstd_.set(std::move(rstd[1]));
  }

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    Tensor dqkv = std::move(dys[0]);
    require(dqkv.unique(), "head norm: the gradient of qkv is shared");
    const Tensor qkv = qkv_.get(ctx);
    const std::array rstd{q_rstd_.get(ctx), k_rstd_.get(ctx)};
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const HeadColumns& part = parts_[i];
      const std::int64_t cols = part.num_heads * head_dim_;
      const Tensor dy = dqkv.columns(part.first_col, cols);
      const Tensor s = qkv.columns(part.first_col, cols);
      ctx.launch(kernels::NormBackward{.kind = kernels::NormKind::rms_norm,
                                       .dy = dy,
                                       .dsum = {},
                                       .s = s,
                                       .weight = part.weight->compute(),
                                       .mean = {},
                                       .rstd = rstd[i],
                                       .dx = dy,
                                       .dweight = gradient_sink(ctx, *part.weight),
                                       .dbias = {},
                                       .head_dim = head_dim_});
    }
    return {std::move(dqkv)};
  }

 private:
  std::vector<HeadColumns> parts_;
  std::int64_t head_dim_;
  Saved qkv_{this, Part::input};
  Saved q_rstd_{this, Part::input};
  Saved k_rstd_{this, Part::input};
};

}  // namespace

Var head_norm(const OpCtx& ctx, const Var& qkv, const HeadLayout& heads,
              const ParameterGroup& q_weight, const ParameterGroup& k_weight, double eps) {
  const Tensor& x = qkv.tensor;
  const std::vector<HeadColumns> parts{{0, heads.num_heads, &q_weight},
                                       {heads.q_cols(), heads.num_kv_heads, &k_weight}};
  Tensor y = ctx.allocate(x.shape(), x.dtype(), "head norm");
  std::vector<Tensor> rstd;
  for (const HeadColumns& part : parts) {
    const std::int64_t cols = part.num_heads * heads.head_dim;
    rstd.push_back(
        ctx.allocate({x.rows() * part.num_heads}, statistics_dtype(x.dtype()), "head norm rstd"));
    ctx.launch(kernels::NormForward{.kind = kernels::NormKind::rms_norm,
                                    .x = x.columns(part.first_col, cols),
                                    .residual = {},
                                    .sum = {},
                                    .weight = part.weight->compute(),
                                    .bias = {},
                                    .y = y.columns(part.first_col, cols),
                                    .mean = {},
                                    .rstd = rstd.back(),
                                    .eps = eps,
                                    .head_dim = heads.head_dim});
  }
  const std::int64_t v_col = heads.q_cols() + heads.kv_cols();
  ctx.launch(kernels::ScaleCast{.x = x.columns(v_col, heads.kv_cols()),
                                .y = y.columns(v_col, heads.kv_cols())});
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<HeadNormNode>(parts, heads.head_dim);
  node->keep(x, std::move(rstd));
  return ctx.tape->record_one(std::move(node), {&qkv}, std::move(y));
}

}  // namespace llmtrain::ops
