#include "kernels/matmul.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

class LinearNode final : public Node {
 public:
  LinearNode(const ParameterGroup& weight, const ParameterGroup* bias)
      : Node("linear"), weight_(&weight), bias_(bias) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    dy_.set(dys[0]);
    if (!wants(0)) return {Tensor()};
    const Tensor& w = weight_->compute();
    Tensor dx = ctx.allocate({dys[0].rows(), w.cols()}, dys[0].dtype(), "linear dx");
    ctx.launch(kernels::Matmul{.a = dys[0], .b = w, .c = dx, .bias = {}});
    return {std::move(dx)};
  }

  bool has_weight_grad() const override { return true; }

  void weight_grad(const OpCtx& ctx) override {
    const Tensor dy = dy_.get(ctx);
    const Tensor x = x_.get(ctx);
    ctx.launch(kernels::Matmul{.a = dy,
                               .b = x,
                               .c = weight_->grad(),
                               .bias = {},
                               .transpose_a = true,
                               .accumulate = true});
    if (bias_ != nullptr) ctx.launch(kernels::ColumnSum{.x = dy, .out = bias_->grad()});
  }

  Saved x_{this, Part::weight};

 private:
  const ParameterGroup* weight_;
  const ParameterGroup* bias_;
  Saved dy_{this, Part::weight};
};

}  // namespace

Var linear(const OpCtx& ctx, const Var& x, const ParameterGroup& weight,
           const ParameterGroup* bias) {
  const Tensor& w = weight.compute();
  require(x.tensor.cols() == w.cols(), "{}: input of {} columns for a weight {}", weight.name(),
          x.tensor.cols(), to_string(w.shape()));
  Tensor y = ctx.allocate({x.tensor.rows(), w.rows()}, x.tensor.dtype(), "linear");
  ctx.launch(kernels::Matmul{.a = x.tensor,
                             .b = w,
                             .c = y,
                             .bias = bias != nullptr ? bias->compute().view() : View{},
                             .transpose_b = true});
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<LinearNode>(weight, bias);
  node->x_.set(x);
  return ctx.tape->record_one(std::move(node), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
