#include "lib/ops/quantized_linear.hpp"

#include "kernels/code_matmul.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/quantized_operand.hpp"

namespace llmtrain::ops {

namespace {

using Form = QuantizedLayer::Form;

/// What both kinds of products keep.
class QuantizedNode : public Node {
 public:
  bool has_weight_grad() const override { return true; }

  Saved x_{this, Part::weight}, x_scales_{this, Part::weight}, w_scales_{this, Part::input};

 protected:
  QuantizedNode(std::string_view op, const QuantizedLayer& layer, const LinearWeights& weights)
      : Node(op), layer_(layer), weight_(weights.weight), bias_(weights.bias) {}

  void add_bias_grad(const OpCtx& ctx) const {
    if (bias_ == nullptr) return;
    ctx.launch(kernels::ColumnSum{.x = dy_.get(ctx), .out = gradient_sink(ctx, *bias_)});
  }

  QuantizedLayer layer_;
  const ParameterGroup* weight_;
  const ParameterGroup* bias_;
  Saved dy_{this, Part::weight}, dy_scales_{this, Part::weight};
};

/// Products of the numbers that codes stand for.
class NumbersNode final : public QuantizedNode {
 public:
  NumbersNode(const QuantizedLayer& layer, const LinearWeights& weights)
      : QuantizedNode("quantized_linear", layer, weights) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    dy_.set(dys[0]);
    Tensor dy_scales, w_scales = w_scales_.get(ctx);
    const Tensor dy = layer_.numbers(ctx, LinearProduct::input_grad, LinearOperand::output_grad,
                                     dys[0], dy_scales);
    dy_scales_.set(std::move(dy_scales));
    if (!wants(0)) return {Tensor()};
    const Tensor w = layer_.numbers(ctx, LinearProduct::input_grad, LinearOperand::weight,
                                    weight_->compute(), w_scales);
    Tensor dx = ctx.allocate({dy.rows(), w.cols()}, dy.dtype(), "quantized_linear dx");
    ctx.launch(kernels::Matmul{.a = dy, .b = w, .c = dx, .bias = {}});
    return {std::move(dx)};
  }

  void weight_grad(const OpCtx& ctx) override {
    Tensor dy_scales = dy_scales_.get(ctx), x_scales = x_scales_.get(ctx);
    {
      const Tensor dy = layer_.numbers(ctx, LinearProduct::weight_grad, LinearOperand::output_grad,
                                       dy_.get(ctx), dy_scales);
      const Tensor x = layer_.numbers(ctx, LinearProduct::weight_grad, LinearOperand::input,
                                      x_.get(ctx), x_scales);
      ctx.launch(kernels::Matmul{.a = dy,
                                 .b = x,
                                 .c = gradient_sink(ctx, *weight_),
                                 .bias = {},
                                 .transpose_a = true,
                                 .accumulate = true});
    }
    add_bias_grad(ctx);
  }
};

/// Products of the codes themselves. One reading of the output's gradient makes its codes for both
/// products; those for the weight's stay until it is made, in place of the gradient.
class CodesNode final : public QuantizedNode {
 public:
  CodesNode(const QuantizedLayer& layer, const LinearWeights& weights)
      : QuantizedNode("quantized_linear", layer, weights) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    if (bias_ != nullptr) dy_.set(dys[0]);
    Tensor dy_scales, w_scales = w_scales_.get(ctx);
    const Codes dy = layer_.codes(ctx, LinearProduct::input_grad, LinearOperand::output_grad,
                                  dys[0], dy_scales, wants(0) ? Form::both : Form::transposed);
    dy_codes_.set(dy.transposed);
    dy_scales_.set(std::move(dy_scales));
    dy_format_ = dy.format;
    dy_scale_inv_ = dy.scale_inv;
    if (!wants(0)) return {Tensor()};
    const Codes w = layer_.codes(ctx, LinearProduct::input_grad, LinearOperand::weight,
                                 weight_->compute(), w_scales, Form::transposed);
    Tensor dx =
        ctx.allocate({dys[0].rows(), w.transposed.rows()}, dys[0].dtype(), "quantized_linear dx");
    ctx.launch(kernels::CodeMatmul{.a = dy.plain,
                                   .b = w.transposed,
                                   .a_scale_inv = dy.scale_inv,
                                   .b_scale_inv = w.scale_inv,
                                   .c = dx,
                                   .bias = {},
                                   .a_format = dy.format,
                                   .b_format = w.format});
    return {std::move(dx)};
  }

  void weight_grad(const OpCtx& ctx) override {
    Tensor x_scales = x_scales_.get(ctx);
    {
      const Codes x = layer_.codes(ctx, LinearProduct::weight_grad, LinearOperand::input,
                                   x_.get(ctx), x_scales, Form::transposed);
      ctx.launch(kernels::CodeMatmul{.a = dy_codes_.get(ctx),
                                     .b = x.transposed,
                                     .a_scale_inv = dy_scale_inv_,
                                     .b_scale_inv = x.scale_inv,
                                     .c = gradient_sink(ctx, *weight_),
                                     .bias = {},
                                     .a_format = dy_format_,
                                     .b_format = x.format,
                                     .accumulate = true});
    }
    add_bias_grad(ctx);
  }

 private:
  Saved dy_codes_{this, Part::weight};
  View dy_scale_inv_;  // in dy_scales_, or the layer's own
  kernels::NumberFormat dy_format_;
};

Tensor forward_of_numbers(const OpCtx& ctx, const QuantizedLayer& layer, const Tensor& x,
                          const LinearWeights& weights, const View& bias, Tensor& x_scales,
                          Tensor& w_scales) {
  const Tensor& w = weights.weight->compute();
  Tensor y = ctx.allocate({x.rows(), w.rows()}, x.dtype(), "quantized_linear");
  const Tensor input =
      layer.numbers(ctx, LinearProduct::forward, LinearOperand::input, x, x_scales);
  const Tensor weight =
      layer.numbers(ctx, LinearProduct::forward, LinearOperand::weight, w, w_scales);
  ctx.launch(kernels::Matmul{.a = input, .b = weight, .c = y, .bias = bias, .transpose_b = true});
  return y;
}

Tensor forward_of_codes(const OpCtx& ctx, const QuantizedLayer& layer, const Tensor& x,
                        const LinearWeights& weights, const View& bias, Tensor& x_scales,
                        Tensor& w_scales) {
  const Tensor& w = weights.weight->compute();
  Tensor y = ctx.allocate({x.rows(), w.rows()}, x.dtype(), "quantized_linear");
  const Codes input =
      layer.codes(ctx, LinearProduct::forward, LinearOperand::input, x, x_scales, Form::plain);
  const Codes weight =
      layer.codes(ctx, LinearProduct::forward, LinearOperand::weight, w, w_scales, Form::plain);
  ctx.launch(kernels::CodeMatmul{.a = input.plain,
                                 .b = weight.plain,
                                 .a_scale_inv = input.scale_inv,
                                 .b_scale_inv = weight.scale_inv,
                                 .c = y,
                                 .bias = bias,
                                 .a_format = input.format,
                                 .b_format = weight.format,
                                 .fast_sums = true});
  return y;
}

}  // namespace

bool quantizes(const OpCtx& ctx, const ParameterGroup& weight) {
  return ctx.training && ctx.quantized != nullptr && ctx.quantized->find(weight).has_value();
}

Var quantized_linear(const OpCtx& ctx, const Var& x, const LinearWeights& weights) {
  const Tensor& w = weights.weight->compute();
  require(x.tensor.cols() == w.cols(), "{}: input of {} columns for a weight {}",
          weights.weight->name(), x.tensor.cols(), to_string(w.shape()));
  const QuantizedLayer layer(ctx, *weights.weight);
  const bool of_codes = ctx.quantized->multiplies_codes(*weights.weight, x.tensor.rows());
  const bool adds_bias = weights.bias != nullptr && weights.adds_bias;
  const View bias = adds_bias ? weights.bias->compute().view() : View{};
  Tensor x_scales, w_scales;
  Tensor y = (of_codes ? forward_of_codes : forward_of_numbers)(ctx, layer, x.tensor, weights, bias,
                                                                x_scales, w_scales);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  std::unique_ptr<QuantizedNode> node;
  if (of_codes) {
    node = std::make_unique<CodesNode>(layer, weights);
  } else {
    node = std::make_unique<NumbersNode>(layer, weights);
  }
  node->x_.set(x);
  node->x_scales_.set(std::move(x_scales));
  node->w_scales_.set(std::move(w_scales));
  return ctx.tape->record_one(std::move(node), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
