#include "kernels/norm.hpp"

#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

struct Forward {
  Tensor sum, y, mean, rstd;
};

View bias_view(const ParameterGroup* bias) {
  return bias != nullptr ? bias->compute().view() : View{};
}

// Residual may be undefined; then sum is x itself.
Forward run_forward(const OpCtx& ctx, const Tensor& x, const Tensor& residual,
                    const ParameterGroup& weight, const ParameterGroup* bias,
                    const NormOptions& options) {
  const DType statistics = statistics_dtype(x.dtype());
  Forward f;
  f.sum = residual.defined() ? ctx.allocate(x.shape(), x.dtype(), "residual sum") : x;
  f.y = ctx.allocate(x.shape(), x.dtype(), "norm");
  if (options.kind == kernels::NormKind::layer_norm) {
    f.mean = ctx.allocate({x.rows()}, statistics, "norm mean");
  }
  f.rstd = ctx.allocate({x.rows()}, statistics, "norm rstd");
  ctx.launch(kernels::NormForward{.kind = options.kind,
                                  .x = x,
                                  .residual = residual.view(),
                                  .sum = residual.defined() ? f.sum.view() : View{},
                                  .weight = weight.compute(),
                                  .bias = bias_view(bias),
                                  .y = f.y,
                                  .mean = f.mean.view(),
                                  .rstd = f.rstd,
                                  .eps = options.eps,
                                  .weight_offset = options.weight_offset});
  return f;
}

class NormNode final : public Node {
 public:
  NormNode(const ParameterGroup& weight, const ParameterGroup* bias, const NormOptions& options,
           bool has_residual)
      : Node("norm"),
        weight_(&weight),
        bias_(bias),
        options_(options),
        has_residual_(has_residual) {}

  void keep(Forward forward) {
    sum_.set(std::move(forward.sum));
    mean_.set(std::move(forward.mean));
    rstd_.set(std::move(forward.rstd));
  }

  // What is normalised is mostly the residual stream, which goes on beside the norm.
  bool adds_to_gradient() const override { return !has_residual_; }

  // Outputs: y, or (sum, y) with a residual. The weight gradient is a vector: it is added here,
  // which spares keeping dy and the sum for the weight part.
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    Tensor dsum = has_residual_ ? std::move(dys[0]) : take_so_far();
    const Tensor& dy = dys[has_residual_ ? 1 : 0];
    if (!dy.defined()) return {dsum, dsum};  // nothing used the norm, only the sum
    const Tensor s = sum_.get(ctx);
    const Tensor mean = mean_.get(ctx);
    const Tensor rstd = rstd_.get(ctx);
    const bool in_place = dsum.defined() && dsum.unique();
    Tensor dx = in_place ? dsum : ctx.allocate(s.shape(), s.dtype(), "norm dx");
    ctx.launch(kernels::NormBackward{
        .kind = options_.kind,
        .dy = dy,
        .dsum = dsum.view(),
        .s = s,
        .weight = weight_->compute(),
        .mean = mean.view(),
        .rstd = rstd,
        .dx = dx,
        .dweight = gradient_sink(ctx, *weight_),
        .dbias = bias_ != nullptr ? gradient_sink(ctx, *bias_).view() : View{},
        .weight_offset = options_.weight_offset});
    if (!has_residual_) return {std::move(dx)};
    return {dx, dx};
  }

 private:
  const ParameterGroup* weight_;
  const ParameterGroup* bias_;
  NormOptions options_;
  bool has_residual_;
  Saved sum_{this, Part::input};
  Saved mean_{this, Part::input};
  Saved rstd_{this, Part::input};
};

std::shared_ptr<Rematerial> norm_source(const OpCtx& ctx, const Tensor& sum,
                                        const ParameterGroup& weight, const ParameterGroup* bias,
                                        const NormOptions& options) {
  if (!ctx.recomputes("norm")) return nullptr;
  return std::make_shared<Rematerial>([sum, &weight, bias, options](const OpCtx& again) {
    return run_forward(again, sum, Tensor(), weight, bias, options).y;
  });
}

}  // namespace

Var norm(const OpCtx& ctx, const Var& x, const ParameterGroup& weight, const ParameterGroup* bias,
         const NormOptions& options) {
  Forward forward = run_forward(ctx, x.tensor, Tensor(), weight, bias, options);
  if (ctx.tape == nullptr) return {std::move(forward.y), -1, nullptr};
  auto node = std::make_unique<NormNode>(weight, bias, options, false);
  Tensor y = forward.y;
  node->keep(std::move(forward));
  Var result = ctx.tape->record_one(std::move(node), {&x}, std::move(y));
  result.source = norm_source(ctx, x.tensor, weight, bias, options);
  return result;
}

NormResult residual_norm(const OpCtx& ctx, const Var& x, const Var& residual,
                         const ParameterGroup& weight, const ParameterGroup* bias,
                         const NormOptions& options) {
  Forward forward = run_forward(ctx, x.tensor, residual.tensor, weight, bias, options);
  if (ctx.tape == nullptr) return {{forward.sum, -1, nullptr}, {forward.y, -1, nullptr}};
  auto node = std::make_unique<NormNode>(weight, bias, options, true);
  const Tensor sum = forward.sum;
  const Tensor y = forward.y;
  node->keep(std::move(forward));
  std::vector<Var> outputs = ctx.tape->record(std::move(node), {&x, &residual}, {sum, y});
  outputs[1].source = norm_source(ctx, sum, weight, bias, options);
  return {std::move(outputs[0]), std::move(outputs[1])};
}

}  // namespace llmtrain::ops
