#include "kernels/elementwise.hpp"
#include "kernels/loss.hpp"
#include "kernels/matmul.hpp"
#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/experts.hpp"

namespace llmtrain::ops {

namespace {

class RouteNode final : public Node {
 public:
  RouteNode(const ParameterGroup& weight, const RouterOptions& options)
      : Node("route"), weight_(&weight), options_(options) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    const Tensor dlogits = logits_gradient(ctx, dys[0]);
    dlogits_.set(dlogits);
    if (!wants(0)) return {Tensor()};
    const Tensor& w = weight_->compute();
    Tensor dx = ctx.allocate({dlogits.rows(), w.cols()}, dlogits.dtype(), "route dx");
    ctx.launch(kernels::Matmul{.a = dlogits, .b = w, .c = dx, .bias = {}});
    return {std::move(dx)};
  }

  bool has_weight_grad() const override { return true; }

  void weight_grad(const OpCtx& ctx) override {
    ctx.launch(kernels::Matmul{.a = dlogits_.get(ctx),
                               .b = x_.get(ctx),
                               .c = gradient_sink(ctx, *weight_),
                               .bias = {},
                               .transpose_a = true,
                               .accumulate = true});
  }

  Saved x_{this, Part::weight};
  Saved logits_{this, Part::input}, expert_{this, Part::input};

 private:
  /// How many rows of each sequence chose an expert, here and on the other ranks that have rows of
  /// it; [sequences, E].
  Tensor count_choices(const OpCtx& ctx, const Tensor& expert, DType dtype) const {
    Tensor choices = ctx.allocate({ctx.rows->num_sequences, options_.experts}, dtype, "choices");
    ctx.launch(kernels::CountChoices{.expert = expert, .choices = choices});
    if (counts()) {
      ctx.launch(kernels::ColumnSum{.x = choices, .out = options_.counters->choices});
    }
    if (ctx.rows->in_parts()) {
      ctx.mesh->axis(Axis::sp).all_reduce(choices, ReduceOp::sum, "choices of experts").wait();
    }
    return choices;
  }

  Tensor logits_gradient(const OpCtx& ctx, const Tensor& dweight) {
    const Tensor logits = logits_.get(ctx), expert = expert_.get(ctx);
    const Tensor choices = count_choices(ctx, expert, logits.dtype());
    // The ranks of Axis::tp sum their terms: the losses are the first one's.
    const bool has_losses = ctx.mesh == nullptr || ctx.mesh->index(Axis::tp) == 0;
    const std::int64_t rows = logits.rows();
    const Tensor values = ctx.allocate({2, rows}, logits.dtype(), "router losses");
    Tensor dlogits = ctx.allocate(logits.shape(), weight_->compute().dtype(), "route dlogits");
    ctx.launch(kernels::RouteTokensBackward{.logits = logits,
                                            .expert = expert,
                                            .dweight = dweight.view(),
                                            .choices = choices,
                                            .dlogits = dlogits,
                                            .values = values,
                                            .rule = options_.rule,
                                            .losses = {.balance = has_losses ? options_.balance : 0,
                                                       .z = has_losses ? options_.z : 0,
                                                       .seq_len = ctx.rows->seq_len,
                                                       .grad_scale = ctx.step.grad_scale},
                                            .scalars = ctx.step.scalars,
                                            .decision = ctx.step.decision});
    if (counts()) {
      for (int i = 0; i < 2; ++i) {
        ctx.launch(kernels::Sum{.x = values.row_range(i, 1),
                                .out = options_.counters->losses.columns(i, 1)});
      }
    }
    return dlogits;
  }

  bool counts() const {
    return options_.counters != nullptr && options_.counters->choices.defined();
  }

  const ParameterGroup* weight_;
  RouterOptions options_;
  Saved dlogits_{this, Part::weight};
};

}  // namespace

Routes route(const OpCtx& ctx, const Var& x, const ParameterGroup& weight,
             const RouterOptions& options) {
  const Tensor& w = weight.compute();
  require(x.tensor.cols() == w.cols() && w.rows() == options.experts,
          "{}: {} for {} experts and {} columns", weight.name(), to_string(w.shape()),
          options.experts, x.tensor.cols());
  const std::int64_t rows = x.tensor.rows();
  const DType dtype = statistics_dtype(x.tensor.dtype());
  Tensor logits = ctx.allocate({rows, options.experts}, dtype, "router logits");
  Tensor expert = ctx.allocate({rows, options.rule.top_k}, DType::i32, "chosen experts");
  Tensor chosen = ctx.allocate({rows, options.rule.top_k}, dtype, "weights of experts");
  ctx.launch(kernels::Matmul{.a = x.tensor, .b = w, .c = logits, .bias = {}, .transpose_b = true});
  ctx.launch(kernels::RouteTokens{.logits = logits,
                                  .bias = options.bias ? options.bias->compute().view() : View{},
                                  .expert = expert,
                                  .weight = chosen,
                                  .rule = options.rule});
  if (ctx.tape == nullptr) return {std::move(expert), {std::move(chosen), -1, nullptr}};
  auto node = std::make_unique<RouteNode>(weight, options);
  node->x_.set(x);
  node->logits_.set(std::move(logits));
  node->expert_.set(expert);
  return {std::move(expert), ctx.tape->record_one(std::move(node), {&x}, std::move(chosen))};
}

}  // namespace llmtrain::ops
