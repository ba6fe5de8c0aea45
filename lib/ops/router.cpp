#include <algorithm>
#include <cmath>

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
  Saved kept_{this, Part::input};  // where some have no room

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

  void count_kept(const OpCtx& ctx, DType dtype) {
    const Tensor kept = ctx.allocate({1, options_.experts}, dtype, "kept choices");
    ctx.launch(kernels::CountChoices{.expert = kept_.get(ctx), .choices = kept});
    ctx.launch(kernels::ColumnSum{.x = kept, .out = options_.counters->kept});
  }

  Tensor logits_gradient(const OpCtx& ctx, const Tensor& dweight) {
    const Tensor logits = logits_.get(ctx), expert = expert_.get(ctx);
    const Tensor choices = count_choices(ctx, expert, logits.dtype());
    if (counts() && options_.counters->kept.defined()) count_kept(ctx, logits.dtype());
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

// `own` [rows, cols] of all ranks of Axis::sp, one after another.
Tensor of_all_parts(const OpCtx& ctx, const Tensor& own, std::string_view tag) {
  Communicator& group = ctx.mesh->axis(Axis::sp);
  Tensor all = ctx.allocate({group.size() * own.rows(), own.cols()}, own.dtype(), tag);
  group.all_gather(own, all, "choices of a sequence").wait();
  return all;
}

// The choices that their experts have room for. In parts of sequences every rank finds those of
// all ranks, and takes its own.
Tensor limited(const OpCtx& ctx, const Tensor& expert, const Tensor& score, std::int64_t experts,
               std::int64_t capacity) {
  const RowMap& rows = *ctx.rows;
  kernels::LimitChoices limit{.expert = expert,
                              .score = score,
                              .position = {},
                              .kept = {},
                              .experts = experts,
                              .sequences = rows.num_sequences,
                              .capacity = capacity};
  if (!rows.in_parts()) {
    Tensor kept = ctx.allocate(expert.shape(), DType::i32, "kept choices");
    limit.kept = kept;
    ctx.launch(limit);
    return kept;
  }
  const Communicator& group = ctx.mesh->axis(Axis::sp);
  const Tensor position = rows.position.reshape({expert.rows(), 1});
  const Tensor all_expert = of_all_parts(ctx, expert, "choices of all sp ranks");
  const Tensor all_score = of_all_parts(ctx, score, "scores of all sp ranks");
  const Tensor all_position = of_all_parts(ctx, position, "positions of all sp ranks");
  const Tensor kept = ctx.allocate(all_expert.shape(), DType::i32, "kept of all sp ranks");
  limit.expert = all_expert;
  limit.score = all_score;
  limit.position = all_position;
  limit.kept = kept;
  limit.parts = group.size();
  ctx.launch(limit);
  return kept.row_range(group.rank() * expert.rows(), expert.rows());
}

}  // namespace

std::int64_t expert_capacity(double factor, std::int64_t tokens, std::int64_t top_k,
                             std::int64_t experts) {
  constexpr double kExact = 1 - 1e-12;
  const double share = factor * static_cast<double>(tokens) * static_cast<double>(top_k) /
                       static_cast<double>(experts);
  return static_cast<std::int64_t>(
      std::min(static_cast<double>(tokens), std::ceil(share * kExact)));
}

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
  Tensor score;
  if (options.capacity_factor > 0) score = ctx.allocate(chosen.shape(), dtype, "chosen scores");
  ctx.launch(kernels::RouteTokens{.logits = logits,
                                  .bias = options.bias ? options.bias->compute().view() : View{},
                                  .expert = expert,
                                  .weight = chosen,
                                  .score = score.view(),
                                  .rule = options.rule});
  Routes routes{.expert = expert, .weight = {std::move(chosen), -1, nullptr}};
  if (score.defined()) {
    routes.capacity = expert_capacity(options.capacity_factor, ctx.rows->seq_len,
                                      options.rule.top_k, options.experts);
    routes.expert = limited(ctx, expert, score, options.experts, *routes.capacity);
  }
  if (ctx.tape == nullptr) return routes;
  auto node = std::make_unique<RouteNode>(weight, options);
  node->x_.set(x);
  node->logits_.set(std::move(logits));
  node->expert_.set(std::move(expert));
  if (routes.capacity) node->kept_.set(routes.expert);
  routes.weight = ctx.tape->record_one(std::move(node), {&x}, std::move(routes.weight.tensor));
  return routes;
}

}  // namespace llmtrain::ops
