#include <memory>
#include <utility>

#include "kernels/matmul.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/ops.hpp"
#include "lib/ops/quantized_linear.hpp"

namespace llmtrain::ops {

namespace {

class LinearNode : public Node {
 public:
  explicit LinearNode(const LinearWeights& weights) : LinearNode("linear", weights) {}

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
    const bool unwritten = ctx.unwritten != nullptr && ctx.unwritten->take(*weight_);
    ctx.launch(kernels::Matmul{.a = dy,
                               .b = x,
                               .c = gradient_sink(ctx, *weight_),
                               .bias = {},
                               .transpose_a = true,
                               .accumulate = !unwritten});
    if (bias_ == nullptr) return;
    ctx.launch(kernels::ColumnSum{.x = dy, .out = gradient_sink(ctx, *bias_)});
  }

  Saved x_{this, Part::weight};

 protected:
  LinearNode(std::string_view op, const LinearWeights& weights)
      : Node(op), weight_(weights.weight), bias_(weights.bias) {}

  const ParameterGroup* weight_;
  const ParameterGroup* bias_;
  Saved dy_{this, Part::weight};
};

// A linear layer behind an activation function whose derivative is in its input gradient's
// epilogue: the input is z, before the function; x_ is what the function made of it.
class ActivatedLinearNode final : public LinearNode {
 public:
  ActivatedLinearNode(kernels::Activation f, const LinearWeights& weights)
      : LinearNode("activated_linear", weights), f_(f) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    dy_.set(dys[0]);
    const Tensor z = z_.get(ctx);
    Tensor dz = ctx.allocate(z.shape(), z.dtype(), "activated_linear dz");
    ctx.launch(kernels::Matmul{.a = dys[0],
                               .b = weight_->compute(),
                               .c = dz,
                               .bias = {},
                               .epilogue = kernels::ProductEpilogue::differentiate,
                               .activation = f_,
                               .pre = z});
    return {std::move(dz)};
  }

  Saved z_{this, Part::input};

 private:
  kernels::Activation f_;
};

void see_input(const OpCtx& ctx, const Tensor& x, const ParameterGroup& weight) {
  if (ctx.watch == nullptr) return;
  const bool divided = weight.members().front()->placement()[Axis::tp].split_dim == 1;
  ctx.watch->see(ctx, weight.name(), x, divided);
}

// x w^T (+ bias) without a result yet.
kernels::Matmul product_of(const Tensor& x, const LinearWeights& weights) {
  return {.a = x,
          .b = weights.weight->compute(),
          .c = {},
          .bias = weights.bias != nullptr && weights.adds_bias ? weights.bias->compute().view()
                                                               : View{},
          .transpose_b = true};
}

// What a product with f in its epilogue makes: z and h = f(z).
struct Activated {
  Tensor z, h;
};

Activated activated_linear(const OpCtx& ctx, const Tensor& x, const LinearWeights& weights,
                           kernels::Activation f) {
  const Shape shape{x.rows(), weights.weight->compute().rows()};
  Activated made{ctx.allocate(shape, x.dtype(), "mlp z"),
                 ctx.allocate(shape, x.dtype(), "mlp activation")};
  kernels::Matmul up = product_of(x, weights);
  up.c = made.h;
  up.epilogue = kernels::ProductEpilogue::activate;
  up.activation = f;
  up.pre = made.z;
  ctx.launch(up);
  return made;
}

// Lets z and h be made again, both by one such product: f of z as it was rounded is another h. The
// walk back asks for z first.
void make_again(const Var& x, const LinearWeights& weights, kernels::Activation f, Var& z, Var& h) {
  const auto h_beside = std::make_shared<Tensor>();
  z.source = made_again(x, [=](const OpCtx& again, const Tensor& of) {
    Activated made = activated_linear(again, of, weights, f);
    *h_beside = std::move(made.h);
    return std::move(made.z);
  });
  h.source = std::make_shared<Rematerial>([=](const OpCtx&) {
    require(h_beside->defined(), "what an activated product made is asked for without its input");
    return std::exchange(*h_beside, {});
  });
}

}  // namespace

Var linear(const OpCtx& ctx, const Var& x, const LinearWeights& weights) {
  see_input(ctx, x.tensor, *weights.weight);
  if (quantizes(ctx, *weights.weight)) return quantized_linear(ctx, x, weights);
  const Tensor& w = weights.weight->compute();
  require(x.tensor.cols() == w.cols(), "{}: input of {} columns for a weight {}",
          weights.weight->name(), x.tensor.cols(), to_string(w.shape()));
  Tensor y = ctx.allocate({x.tensor.rows(), w.rows()}, x.tensor.dtype(), "linear");
  kernels::Matmul product = product_of(x.tensor, weights);
  product.c = y;
  ctx.launch(product);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<LinearNode>(weights);
  node->x_.set(x);
  return ctx.tape->record_one(std::move(node), {&x}, std::move(y));
}

Var up_projection(const OpCtx& ctx, const Var& x, const LinearWeights& weights) {
  Var y = linear(ctx, x, weights);
  if (!ctx.recomputes("up_proj") || quantizes(ctx, *weights.weight)) return y;
  y.source = made_again(x, [weights](const OpCtx& again, const Tensor& of) {
    return linear(again, {of, -1, nullptr}, weights).tensor;
  });
  return y;
}

Var mlp(const OpCtx& ctx, const Var& x, const LinearWeights& in, kernels::Activation f,
        const LinearWeights& out) {
  const DType dtype = x.tensor.dtype();
  const bool quantized = quantizes(ctx, *in.weight) || quantizes(ctx, *out.weight);
  if (!ctx.kernel.table->fuses(f, dtype) || quantized) {
    const Var z = up_projection(ctx, x, in);
    return linear(ctx, activation(ctx, z, f), out);
  }
  Activated up = activated_linear(ctx, x.tensor, in, f);
  Tensor y = ctx.allocate({x.tensor.rows(), out.weight->compute().rows()}, dtype, "mlp");
  see_input(ctx, x.tensor, *in.weight);
  see_input(ctx, up.h, *out.weight);
  kernels::Matmul down = product_of(up.h, out);
  down.c = y;
  ctx.launch(down);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto first = std::make_unique<LinearNode>(in);
  first->x_.set(x);
  Var z = ctx.tape->record_one(std::move(first), {&x}, std::move(up.z));
  Var h{std::move(up.h), -1, nullptr};
  if (ctx.recomputes("activation") || ctx.recomputes("up_proj")) make_again(x, in, f, z, h);
  auto second = std::make_unique<ActivatedLinearNode>(f, out);
  second->z_.set(z);
  second->x_.set(h);
  return ctx.tape->record_one(std::move(second), {&z}, std::move(y));
}

}  // namespace llmtrain::ops
