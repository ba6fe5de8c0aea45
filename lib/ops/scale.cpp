#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

Tensor scaled(const OpCtx& ctx, const Tensor& x, double factor, std::string_view tag) {
  Tensor y = ctx.allocate(x.shape(), x.dtype(), tag);
  ctx.launch(kernels::ScaleCast{.x = x, .y = y, .scale = factor});
  return y;
}

class ScaleNode final : public Node {
 public:
  explicit ScaleNode(double factor) : Node("scale"), factor_(factor) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {scaled(ctx, dys[0], factor_, "scale dx")};
  }

 private:
  double factor_;
};

double rounded(double factor, DType dtype) {
  if (dtype == DType::bf16) return to_float(to_bf16(static_cast<float>(factor)));
  if (dtype == DType::f16) return to_float(to_f16(static_cast<float>(factor)));
  return dtype == DType::f64 ? factor : static_cast<double>(static_cast<float>(factor));
}

}  // namespace

Var scale(const OpCtx& ctx, const Var& x, double factor) {
  factor = rounded(factor, x.tensor.dtype());
  Tensor y = scaled(ctx, x.tensor, factor, "scale");
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<ScaleNode>(factor), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
