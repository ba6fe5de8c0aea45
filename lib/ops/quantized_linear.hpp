#pragma once
/// Linear layers whose products take operands of eight bits (lib/param/quantized_layers.hpp). Each
/// operand is quantized from its own bf16 (or FP32) tensor. Where QuantizedLayers says so, products
/// multiply codes; else the numbers that codes stand for, in the operands' type. Sums are FP32.

#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

/// Whether a training step of ctx quantizes the products of this layer. Evaluation and decoding do
/// not.
bool quantizes(const OpCtx& ctx, const ParameterGroup& weight);

/// linear() of a layer that ctx quantizes. Scales of whole tensors are made, where ranks of
/// Axis::tp or Axis::sp have parts, by a collective over these, in the forward and in the input
/// part of the backward; weight parts need none.
Var quantized_linear(const OpCtx& ctx, const Var& x, const LinearWeights& weights);

}  // namespace llmtrain::ops
