#include "lib/ops/quantized_linear.hpp"

#include "kernels/matmul.hpp"
#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/quantized_layers.hpp"

namespace llmtrain::ops {

namespace {

enum class Product : std::uint8_t { forward, input_grad, weight_grad };

/// A layer as one operation has it.
class Layer {
 public:
  Layer(const OpCtx& ctx, const ParameterGroup& weight)
      : layers_(ctx.quantized), number_(*ctx.quantized->find(weight)) {
    tp_split_ = weight.members().front()->placement()[Axis::tp].split_dim;
  }

  /// The numbers that the codes of x stand for. `scales`: of a tensor that has its own, made by its
  /// first product and kept for the other one; else nothing.
  Tensor operand(const OpCtx& ctx, Product product, LinearOperand which, const Tensor& x,
                 Tensor& scales) const {
    const kernels::Quantizer quantizer =
        quantizer_of(layers_->options(), which, product == Product::weight_grad);
    const bool first = which == LinearOperand::output_grad ? product == Product::input_grad
                                                           : product == Product::forward;
    const bool delayed = quantizer.source == kernels::ScaleSource::history;
    if (delayed && first) {
      ctx.launch(kernels::BlockAmax{.x = x, .amax = layers_->amax(number_, which)});
    }
    // Blocks lie otherwise in the other product.
    const bool of_blocks = layers_->options().scaling == OperandScaling::block;
    Tensor made = of_blocks ? Tensor() : scales;
    if (!delayed && !made.defined()) made = scales_of(ctx, quantizer, which, x, first);
    if (!of_blocks) scales = made;
    Tensor y = ctx.allocate(x.shape(), x.dtype(), "fp8 operand");
    ctx.launch(kernels::Quantize{
        .x = x,
        .scale = delayed ? layers_->scale(number_, which) : made.row_range(0, 1),
        .scale_inv = delayed ? layers_->scale_inv(number_, which) : made.row_range(1, 1),
        .codes = {},
        .y = y,
        .saturated =
            counts(ctx, product, which) ? layers_->saturated(number_, which).view() : View{},
        .format = quantizer.format,
        .block = quantizer.block,
        .rounding = {}});
    return y;
  }

 private:
  /// FP32 [2, blocks]: scales and their inverses.
  Tensor scales_of(const OpCtx& ctx, const kernels::Quantizer& quantizer, LinearOperand which,
                   const Tensor& x, bool first) const {
    const std::int64_t blocks = quantizer.block.down(x.rows()) * quantizer.block.across(x.cols());
    const Tensor amax = ctx.allocate({blocks}, DType::f32, "fp8 amax");
    ctx.launch(kernels::Fill{.y = amax, .value = 0});
    ctx.launch(kernels::BlockAmax{.x = x, .amax = amax, .block = quantizer.block});
    if (layers_->options().scaling == OperandScaling::current) join(ctx, which, amax);
    if (first) {
      ctx.launch(kernels::BlockAmax{.x = amax, .amax = layers_->amax(number_, which)});
    }
    Tensor scales = ctx.allocate({2, blocks}, DType::f32, "fp8 scales");
    ctx.launch(kernels::ScaleFromAmax{.amax = amax,
                                      .scale = scales.row_range(0, 1),
                                      .scale_inv = scales.row_range(1, 1),
                                      .max = quantizer.format.max,
                                      .largest = kernels::largest_of(x.dtype()),
                                      .power_of_two = quantizer.power_of_two});
    return scales;
  }

  /// The amax of the whole tensor, of which ranks may have parts.
  static void join(const OpCtx& ctx, LinearOperand which, const Tensor& amax) {
    for (const Axis axis : {Axis::tp, Axis::sp}) {
      if (ctx.mesh == nullptr || ctx.mesh->size(axis) == 1) continue;
      if (axis == Axis::sp && which == LinearOperand::weight) continue;
      ctx.mesh->axis(axis).all_reduce(amax, ReduceOp::max, "fp8 amax").wait();
    }
  }

  /// Numbers that do not fit are counted once for each operand and micro-batch: in the backward,
  /// which a recompute segment runs once, and where several ranks have the same numbers by the
  /// first of them.
  bool counts(const OpCtx& ctx, Product product, LinearOperand which) const {
    const bool is_weight = which == LinearOperand::weight;
    const bool now = which == LinearOperand::input ? product == Product::weight_grad
                                                   : product == Product::input_grad;
    if (!now || ctx.mesh == nullptr) return now;
    const int whole_over_tp = which == LinearOperand::input ? 0 : 1;  // where this dim is split
    const bool same_over_tp = !is_weight && tp_split_ == whole_over_tp;
    return (!same_over_tp || ctx.mesh->index(Axis::tp) == 0) &&
           (!is_weight || ctx.mesh->index(Axis::sp) == 0);
  }

  const QuantizedLayers* layers_;
  std::int64_t number_;
  int tp_split_;
};

class QuantizedLinearNode final : public Node {
 public:
  QuantizedLinearNode(const Layer& layer, const LinearWeights& weights)
      : Node("quantized_linear"), layer_(layer), weight_(weights.weight), bias_(weights.bias) {}

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    dy_.set(dys[0]);
    Tensor dy_scales, w_scales = w_scales_.get(ctx);
    const Tensor dy =
        layer_.operand(ctx, Product::input_grad, LinearOperand::output_grad, dys[0], dy_scales);
    dy_scales_.set(std::move(dy_scales));
    if (!wants(0)) return {Tensor()};
    const Tensor w = layer_.operand(ctx, Product::input_grad, LinearOperand::weight,
                                    weight_->compute(), w_scales);
    Tensor dx = ctx.allocate({dy.rows(), w.cols()}, dy.dtype(), "quantized_linear dx");
    ctx.launch(kernels::Matmul{.a = dy, .b = w, .c = dx, .bias = {}});
    return {std::move(dx)};
  }

  bool has_weight_grad() const override { return true; }

  void weight_grad(const OpCtx& ctx) override {
    const Tensor all_dy = dy_.get(ctx);
    Tensor dy_scales = dy_scales_.get(ctx), x_scales = x_scales_.get(ctx);
    {
      const Tensor dy =
          layer_.operand(ctx, Product::weight_grad, LinearOperand::output_grad, all_dy, dy_scales);
      const Tensor x =
          layer_.operand(ctx, Product::weight_grad, LinearOperand::input, x_.get(ctx), x_scales);
      ctx.launch(kernels::Matmul{.a = dy,
                                 .b = x,
                                 .c = gradient_sink(ctx, *weight_),
                                 .bias = {},
                                 .transpose_a = true,
                                 .accumulate = true});
    }
    if (bias_ == nullptr) return;
    ctx.launch(kernels::ColumnSum{.x = all_dy, .out = gradient_sink(ctx, *bias_)});
  }

  Saved x_{this, Part::weight}, x_scales_{this, Part::weight}, w_scales_{this, Part::input};

 private:
  Layer layer_;
  const ParameterGroup* weight_;
  const ParameterGroup* bias_;
  Saved dy_{this, Part::weight}, dy_scales_{this, Part::weight};
};

}  // namespace

bool quantizes(const OpCtx& ctx, const ParameterGroup& weight) {
  return ctx.training && ctx.quantized != nullptr && ctx.quantized->find(weight).has_value();
}

Var quantized_linear(const OpCtx& ctx, const Var& x, const LinearWeights& weights) {
  const Tensor& w = weights.weight->compute();
  require(x.tensor.cols() == w.cols(), "{}: input of {} columns for a weight {}",
          weights.weight->name(), x.tensor.cols(), to_string(w.shape()));
  const Layer layer(ctx, *weights.weight);
  Tensor y = ctx.allocate({x.tensor.rows(), w.rows()}, x.tensor.dtype(), "quantized_linear");
  Tensor x_scales, w_scales;
  {
    const Tensor input =
        layer.operand(ctx, Product::forward, LinearOperand::input, x.tensor, x_scales);
    const Tensor weight = layer.operand(ctx, Product::forward, LinearOperand::weight, w, w_scales);
    const bool adds_bias = weights.bias != nullptr && weights.adds_bias;
    ctx.launch(kernels::Matmul{.a = input,
                               .b = weight,
                               .c = y,
                               .bias = adds_bias ? weights.bias->compute().view() : View{},
                               .transpose_b = true});
  }
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<QuantizedLinearNode>(layer, weights);
  node->x_.set(x);
  node->x_scales_.set(std::move(x_scales));
  node->w_scales_.set(std::move(w_scales));
  return ctx.tape->record_one(std::move(node), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
