#include "kernels/quantize/quantize.hpp"

#include "kernels/operands.hpp"
#include "kernels/update_decision.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::initializer_list<DType> kSources = {DType::f32, DType::bf16, DType::f16};

void check_scales(const Operands& operands, std::string_view name, const View& scales,
                  const View& matrix, const BlockShape& block) {
  operands.expects(block.rows >= 0 && block.cols >= 0, "blocks that are not negative");
  operands.dense(name, scales, block.down(matrix.rows()) * block.across(matrix.cols()),
                 {DType::f32});
}

}  // namespace

float largest_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return to_float(bf16{0x7f7f});
    case DType::f16:
      return static_cast<float>(kMaxF16);
    default:
      return kMaxF32;
  }
}

void BlockAmax::check() const {
  const Operands operands(name);
  operands.strided("x", x, x.rows(), x.cols(), kSources);
  check_scales(operands, "amax", amax, x, block);
}

Cost BlockAmax::cost() const { return memory_cost({x, amax}, {amax}); }

void ScaleFromAmax::check() const {
  const Operands operands(name);
  operands.dense("amax", amax, amax.numel(), {DType::f32});
  operands.dense("scale", scale, amax.numel(), {DType::f32});
  operands.dense("scale_inv", scale_inv, amax.numel(), {DType::f32});
  operands.expects(max > 0 && largest > 0, "largest numbers above 0");
}

Cost ScaleFromAmax::cost() const { return memory_cost({amax}, {scale, scale_inv}); }

void RollAmaxHistory::check() const {
  const Operands operands(name);
  operands.dense("amax", amax, amax.numel(), {DType::f32});
  if (history.defined()) {
    operands.strided("history", history, amax.numel(), history.cols(), {DType::f32});
  }
  for (const auto& [of, view] :
       {std::pair("scale", scale), {"scale_inv", scale_inv}, {"max", max}}) {
    operands.dense(of, view, amax.numel(), {DType::f32});
  }
  if (decision.defined()) check_decision(operands, decision);
  operands.expects(margin > -100 && margin < 100, "a margin of less than 100 binades");
}

Cost RollAmaxHistory::cost() const {
  return memory_cost({amax, history, scale, max}, {history, scale, scale_inv});
}

void Quantize::check() const {
  const Operands operands(name);
  operands.strided("x", x, x.rows(), x.cols(), kSources);
  check_scales(operands, "scale", scale, x, block);
  operands.expects(codes.defined() || transposed.defined() || y.defined(), "codes or y");
  operands.expects(format.bits <= 8, "codes of at most 8 bits");
  if (codes.defined()) operands.strided("codes", codes, x.rows(), x.cols(), {DType::u8});
  if (y.defined()) {
    check_scales(operands, "scale_inv", scale_inv, x, block);
    operands.strided("y", y, x.rows(), x.cols(), kSources);
    if (x.dtype != y.dtype) operands.distinct("y", y, "x", x);
  }
  if (transposed.defined()) {
    operands.strided("transposed", transposed, x.cols(), x.rows(), {DType::u8});
    operands.expects(block.rows == 0 && block.cols == 0 && !rounding.stochastic,
                     "transposed codes of one scale, rounded to nearest");
  }
  if (saturated.defined()) operands.dense("saturated", saturated, 1, {DType::f64});
  if (!rounding.stochastic) return;
  check_step_scalars(operands, rounding.scalars);
  if (rounding.row_id.defined()) {
    operands.dense("row_id", rounding.row_id, x.rows(), {DType::i64});
  }
}

Cost Quantize::cost() const { return memory_cost({x, scale}, {codes, transposed, y}); }

void Dequantize::check() const {
  const Operands operands(name);
  operands.strided("y", y, y.rows(), y.cols(), kSources);
  operands.strided("codes", codes, y.rows(), y.cols(), {DType::u8});
  check_scales(operands, "scale_inv", scale_inv, y, block);
  operands.expects(format.bits <= 8, "codes of at most 8 bits");
}

Cost Dequantize::cost() const { return memory_cost({codes, scale_inv}, {y}); }

}  // namespace llmtrain::kernels
