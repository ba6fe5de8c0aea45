#pragma once
/// The operands of the products of a linear layer in FP8: their scales, and what they become.

#include "kernels/quantize/quantize.hpp"
#include "lib/autograd/op_ctx.hpp"
#include "lib/param/quantized_layers.hpp"

namespace llmtrain::ops {

enum class LinearProduct : std::uint8_t { forward, input_grad, weight_grad };

/// A tensor's codes: [rows, columns], [columns, rows], or both.
struct Codes {
  Tensor plain, transposed;
  View scale_inv;  // FP32 [1]
  kernels::NumberFormat format;
};

/// A layer as one operation has it.
class QuantizedLayer {
 public:
  QuantizedLayer(const OpCtx& ctx, const ParameterGroup& weight);

  /// The numbers that the codes of x stand for, in x's type. `scales`: of a tensor that has its
  /// own, made by its first product and kept for the other one; else nothing.
  Tensor numbers(const OpCtx& ctx, LinearProduct product, LinearOperand which, const Tensor& x,
                 Tensor& scales) const;

  /// Which codes a product takes.
  enum class Form : std::uint8_t { plain, transposed, both };
  /// The codes of x, which has one scale. `scales` as above; where it is defined afterwards, the
  /// result's scale_inv lies in it.
  Codes codes(const OpCtx& ctx, LinearProduct product, LinearOperand which, const Tensor& x,
              Tensor& scales, Form form) const;

 private:
  /// What quantizes an operand: [1 or blocks] each.
  struct Scales {
    Tensor scale, scale_inv;
  };
  Scales scales_for(const OpCtx& ctx, const kernels::Quantizer& quantizer, LinearProduct product,
                    LinearOperand which, const Tensor& x, Tensor& scales) const;
  /// FP32 [2, blocks]: scales and their inverses.
  Tensor scales_of(const OpCtx& ctx, const kernels::Quantizer& quantizer, LinearOperand which,
                   const Tensor& x, bool first) const;
  /// The amax of the whole tensor, of which ranks may have parts.
  static void join(const OpCtx& ctx, LinearOperand which, const Tensor& amax);
  View saturated(const OpCtx& ctx, LinearProduct product, LinearOperand which) const;

  const QuantizedLayers* layers_;
  std::int64_t number_;
  int tp_split_;
};

}  // namespace llmtrain::ops
