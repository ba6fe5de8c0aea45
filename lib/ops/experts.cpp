#include "lib/ops/experts.hpp"

#include "kernels/experts.hpp"
#include "kernels/scale_rows.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::ops {

SortedRows sort_by_expert(const OpCtx& ctx, const Tensor& expert, std::int64_t experts,
                          std::optional<std::int64_t> capacity) {
  SortedRows sorted{.offsets = ctx.allocate({experts + 1}, DType::i32, "experts' rows"),
                    .source = ctx.allocate({expert.numel()}, DType::i32, "choices of sorted rows"),
                    .place = ctx.allocate({expert.numel()}, DType::i32, "places of choices")};
  ctx.launch(kernels::GroupByExpert{
      .expert = expert, .offsets = sorted.offsets, .source = sorted.source, .place = sorted.place});
  if (!capacity) return sorted;
  sorted.capacity = capacity;
  // Of sequences in parts as much as this rank has of their rows.
  const std::int64_t most = experts * *capacity * ctx.rows->rows() / ctx.rows->seq_len;
  if (most < expert.numel()) sorted.expected = most;
  return sorted;
}

namespace {

Tensor gathered(const OpCtx& ctx, const Tensor& x, const SortedRows& sorted) {
  Tensor y = ctx.allocate({sorted.source.numel(), x.cols()}, x.dtype(), "rows of experts");
  ctx.launch(
      kernels::GatherRows{.x = x, .source = sorted.source, .offsets = sorted.offsets, .y = y});
  return y;
}

Tensor combined(const OpCtx& ctx, const Tensor& x, const SortedRows& sorted, std::int64_t rows) {
  Tensor y = ctx.allocate({rows, x.cols()}, x.dtype(), "combined rows");
  ctx.launch(kernels::CombineRows{.x = x, .place = sorted.place, .y = y});
  return y;
}

class GatherRowsNode final : public Node {
 public:
  GatherRowsNode(SortedRows sorted, std::int64_t rows)
      : Node("gather_rows"), sorted_(std::move(sorted)), rows_(rows) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {combined(ctx, dys[0], sorted_, rows_)};
  }

 private:
  SortedRows sorted_;
  std::int64_t rows_;
};

class CombineRowsNode final : public Node {
 public:
  explicit CombineRowsNode(SortedRows sorted) : Node("combine_rows"), sorted_(std::move(sorted)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {gathered(ctx, dys[0], sorted_)};
  }

 private:
  SortedRows sorted_;
};

}  // namespace

Var gather_rows(const OpCtx& ctx, const Var& x, const SortedRows& sorted) {
  Tensor all = gathered(ctx, x.tensor, sorted);
  if (ctx.tape == nullptr) return {std::move(all), -1, nullptr};
  Var y = ctx.tape->record_one(std::make_unique<GatherRowsNode>(sorted, x.tensor.rows()), {&x},
                               std::move(all));
  y.source = made_again(
      x, [sorted](const OpCtx& again, const Tensor& of) { return gathered(again, of, sorted); });
  return y;
}

Var combine_rows(const OpCtx& ctx, const Var& x, const SortedRows& sorted, std::int64_t rows) {
  Tensor y = combined(ctx, x.tensor, sorted, rows);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<CombineRowsNode>(sorted), {&x}, std::move(y));
}

namespace {

class ExpertLinearNode final : public Node {
 public:
  ExpertLinearNode(const ParameterGroup& weight, SortedRows sorted)
      : Node("expert_linear"), weight_(&weight), sorted_(std::move(sorted)) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    const Tensor& dy = dys[0];
    dy_.set(dy);
    const Shape& first = weight_->members().front()->compute().shape();
    Tensor dx = ctx.allocate({dy.rows(), first[2]}, dy.dtype(), "expert_linear dx");
    std::int64_t begin = 0;
    for (const Parameter* p : weight_->members()) {
      const Tensor& w = p->compute();
      ctx.launch(kernels::GroupedMatmul{.a = dy.columns(begin, w.shape()[1]),
                                        .b = w,
                                        .c = dx,
                                        .offsets = sorted_.offsets,
                                        .product = kernels::GroupedProduct::input_grad,
                                        .accumulate = begin > 0,
                                        .expected_rows = sorted_.expected});
      begin += w.shape()[1];
    }
    return {std::move(dx)};
  }

  bool has_weight_grad() const override { return true; }

  void weight_grad(const OpCtx& ctx) override {
    const Tensor dy = dy_.get(ctx);
    const Tensor x = x_.get(ctx);
    const Tensor& sums = gradient_sink(ctx, *weight_);
    std::int64_t begin = 0, row = 0;
    for (const Parameter* p : weight_->members()) {
      const Shape& shape = p->box().shape;
      const std::int64_t out = shape[1];
      ctx.launch(kernels::GroupedMatmul{.a = dy.columns(begin, out),
                                        .b = x,
                                        .c = sums.row_range(row, shape.rows()).reshape(shape),
                                        .offsets = sorted_.offsets,
                                        .product = kernels::GroupedProduct::weight_grad,
                                        .expected_rows = sorted_.expected});
      begin += out;
      row += shape.rows();
    }
  }

  Saved x_{this, Part::weight};

 private:
  const ParameterGroup* weight_;
  SortedRows sorted_;
  Saved dy_{this, Part::weight};
};

}  // namespace

Var expert_linear(const OpCtx& ctx, const Var& x, const SortedRows& sorted,
                  const ParameterGroup& weight) {
  std::int64_t out = 0;
  for (const Parameter* p : weight.members()) out += p->box().shape[1];
  Tensor y = ctx.allocate({x.tensor.rows(), out}, x.tensor.dtype(), "expert_linear");
  std::int64_t begin = 0;
  for (const Parameter* p : weight.members()) {
    const Tensor& w = p->compute();
    require(w.shape()[2] == x.tensor.cols(), "{}: input of {} columns for experts {}",
            weight.name(), x.tensor.cols(), to_string(w.shape()));
    ctx.launch(kernels::GroupedMatmul{.a = x.tensor,
                                      .b = w,
                                      .c = y.columns(begin, w.shape()[1]),
                                      .offsets = sorted.offsets,
                                      .expected_rows = sorted.expected});
    begin += w.shape()[1];
  }
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<ExpertLinearNode>(weight, sorted);
  node->x_.set(x);
  return ctx.tape->record_one(std::move(node), {&x}, std::move(y));
}

Var expert_up_projection(const OpCtx& ctx, const Var& x, const SortedRows& sorted,
                         const ParameterGroup& weight) {
  Var y = expert_linear(ctx, x, sorted, weight);
  if (!ctx.recomputes("up_proj")) return y;
  y.source = made_again(x, [sorted, &weight](const OpCtx& again, const Tensor& of) {
    return expert_linear(again, {of, -1, nullptr}, sorted, weight).tensor;
  });
  return y;
}

namespace {

class SortWeightsNode final : public Node {
 public:
  SortWeightsNode(SortedRows sorted, const Shape& shape)
      : Node("sort_weights"), sorted_(std::move(sorted)), shape_(shape) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {combined(ctx, dys[0], sorted_, shape_.numel()).reshape(shape_)};
  }

 private:
  SortedRows sorted_;
  Shape shape_;
};

Tensor scaled(const OpCtx& ctx, const Tensor& x, const Tensor& weight) {
  Tensor y = ctx.allocate(x.shape(), x.dtype(), "scaled rows");
  ctx.launch(kernels::ScaleRows{.x = x, .weight = weight, .y = y});
  return y;
}

class ScaleRowsNode final : public Node {
 public:
  ScaleRowsNode() : Node("scale_rows") {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    const Tensor x = x_.get(ctx), weight = weight_.get(ctx);
    Tensor dx = ctx.allocate(x.shape(), x.dtype(), "scale_rows dx");
    Tensor dweight = ctx.allocate(weight.shape(), weight.dtype(), "scale_rows dweight");
    ctx.launch(kernels::ScaleRowsBackward{
        .x = x, .weight = weight, .dy = dys[0], .dx = dx, .dweight = dweight});
    return {std::move(dx), std::move(dweight)};
  }

  Saved x_{this, Part::input}, weight_{this, Part::input};
};

}  // namespace

Var sort_weights(const OpCtx& ctx, const Var& weight, const SortedRows& sorted) {
  const Tensor& w = weight.tensor;
  Tensor y = gathered(ctx, w.reshape({w.numel(), 1}), sorted);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<SortWeightsNode>(sorted, w.shape()), {&weight},
                              std::move(y));
}

Var scale_rows(const OpCtx& ctx, const Var& x, const Var& weight) {
  Tensor y = scaled(ctx, x.tensor, weight.tensor);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<ScaleRowsNode>();
  node->x_.set(x);
  node->weight_.set(weight);
  Var result = ctx.tape->record_one(std::move(node), {&x, &weight}, std::move(y));
  result.source = made_again(x, [w = weight.tensor](const OpCtx& again, const Tensor& of) {
    return scaled(again, of, w);
  });
  return result;
}

}  // namespace llmtrain::ops
