#include "lib/ops/quantized_operand.hpp"

#include "kernels/elementwise.hpp"
#include "lib/mesh/mesh.hpp"

namespace llmtrain::ops {

QuantizedLayer::QuantizedLayer(const OpCtx& ctx, const ParameterGroup& weight)
    : layers_(ctx.quantized),
      number_(*ctx.quantized->find(weight)),
      tp_split_(weight.members().front()->placement()[Axis::tp].split_dim) {}

Tensor QuantizedLayer::numbers(const OpCtx& ctx, LinearProduct product, LinearOperand which,
                               const Tensor& x, Tensor& scales) const {
  const kernels::Quantizer quantizer =
      quantizer_of(layers_->options(), which, product == LinearProduct::weight_grad);
  const Scales by = scales_for(ctx, quantizer, product, which, x, scales);
  Tensor y = ctx.allocate(x.shape(), x.dtype(), "fp8 operand");
  ctx.launch(kernels::Quantize{.x = x,
                               .scale = by.scale,
                               .scale_inv = by.scale_inv,
                               .codes = {},
                               .y = y,
                               .transposed = {},
                               .saturated = saturated(ctx, product, which),
                               .format = quantizer.format,
                               .block = quantizer.block,
                               .rounding = {}});
  return y;
}

Codes QuantizedLayer::codes(const OpCtx& ctx, LinearProduct product, LinearOperand which,
                            const Tensor& x, Tensor& scales, Form form) const {
  const kernels::Quantizer quantizer = quantizer_of(layers_->options(), which, false);
  const Scales by = scales_for(ctx, quantizer, product, which, x, scales);
  Codes made{.scale_inv = by.scale_inv, .format = quantizer.format};
  if (form != Form::transposed) {
    made.plain = ctx.allocate({x.rows(), x.cols()}, DType::u8, "fp8 codes");
  }
  if (form != Form::plain) {
    made.transposed = ctx.allocate({x.cols(), x.rows()}, DType::u8, "fp8 codes transposed");
  }
  ctx.launch(kernels::Quantize{.x = x,
                               .scale = by.scale,
                               .scale_inv = {},
                               .codes = made.plain.view(),
                               .y = {},
                               .transposed = made.transposed.view(),
                               .saturated = saturated(ctx, product, which),
                               .format = quantizer.format,
                               .block = quantizer.block,
                               .rounding = {}});
  return made;
}

QuantizedLayer::Scales QuantizedLayer::scales_for(const OpCtx& ctx,
                                                  const kernels::Quantizer& quantizer,
                                                  LinearProduct product, LinearOperand which,
                                                  const Tensor& x, Tensor& scales) const {
  const bool first = which == LinearOperand::output_grad ? product == LinearProduct::input_grad
                                                         : product == LinearProduct::forward;
  const bool made_before = which == LinearOperand::weight && layers_->scales_weights_once();
  if (quantizer.source == kernels::ScaleSource::history) {
    if (first && !made_before)
      ctx.launch(kernels::BlockAmax{.x = x, .amax = layers_->amax(number_, which)});
    return {layers_->scale(number_, which), layers_->scale_inv(number_, which)};
  }
  if (made_before) return {layers_->weight_scale(number_), layers_->weight_scale_inv(number_)};
  // Blocks lie otherwise in the other product.
  const bool of_blocks = layers_->options().scaling == OperandScaling::block;
  Tensor made = of_blocks ? Tensor() : scales;
  if (!made.defined()) made = scales_of(ctx, quantizer, which, x, first);
  if (!of_blocks) scales = made;
  return {made.row_range(0, 1), made.row_range(1, 1)};
}

Tensor QuantizedLayer::scales_of(const OpCtx& ctx, const kernels::Quantizer& quantizer,
                                 LinearOperand which, const Tensor& x, bool first) const {
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

void QuantizedLayer::join(const OpCtx& ctx, LinearOperand which, const Tensor& amax) {
  for (const Axis axis : {Axis::tp, Axis::sp}) {
    if (ctx.mesh == nullptr || ctx.mesh->size(axis) == 1) continue;
    if (axis == Axis::sp && which == LinearOperand::weight) continue;
    ctx.mesh->axis(axis).all_reduce(amax, ReduceOp::max, "fp8 amax").wait();
  }
}

/// Numbers that do not fit are counted once for each operand and micro-batch: in the backward,
/// which a recompute segment runs once, and where several ranks have the same numbers by the
/// first of them. Nothing where they are not counted.
View QuantizedLayer::saturated(const OpCtx& ctx, LinearProduct product, LinearOperand which) const {
  const bool is_weight = which == LinearOperand::weight;
  bool counts = which == LinearOperand::input ? product == LinearProduct::weight_grad
                                              : product == LinearProduct::input_grad;
  if (counts && ctx.mesh != nullptr) {
    const int whole_over_tp = which == LinearOperand::input ? 0 : 1;  // where this dim is split
    const bool same_over_tp = !is_weight && tp_split_ == whole_over_tp;
    counts = (!same_over_tp || ctx.mesh->index(Axis::tp) == 0) &&
             (!is_weight || ctx.mesh->index(Axis::sp) == 0);
  }
  return counts ? layers_->saturated(number_, which).view() : View{};
}

}  // namespace llmtrain::ops
