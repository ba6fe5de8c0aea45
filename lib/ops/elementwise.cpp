#include "kernels/elementwise.hpp"

#include "lib/base/require.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

class AddNode final : public Node {
 public:
  AddNode() : Node("add") {}
  std::vector<Tensor> input_grad(const OpCtx&, std::span<Tensor> dys) override {
    return {dys[0], dys[0]};
  }
};

class ActivationNode final : public Node {
 public:
  explicit ActivationNode(kernels::Activation f) : Node("activation"), f_(f) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    const Tensor x = x_.get(ctx);
    Tensor dx = ctx.allocate(x.shape(), x.dtype(), "activation dx");
    ctx.launch(kernels::ActivationBackward{
        .activation = f_, .x = x, .up = {}, .dy = dys[0], .dx = dx, .dup = {}});
    return {std::move(dx)};
  }
  Saved x_{this, Part::input};

 private:
  kernels::Activation f_;
};

class GatedActivationNode final : public Node {
 public:
  explicit GatedActivationNode(kernels::Activation f) : Node("gated_activation"), f_(f) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    const Tensor x = x_.get(ctx);
    const std::int64_t cols = x.cols() / 2;
    Tensor dx = ctx.allocate(x.shape(), x.dtype(), "gated_activation dx");
    ctx.launch(kernels::ActivationBackward{.activation = f_,
                                           .x = x.columns(0, cols),
                                           .up = x.columns(cols, cols),
                                           .dy = dys[0],
                                           .dx = dx.columns(0, cols),
                                           .dup = dx.columns(cols, cols)});
    return {std::move(dx)};
  }
  Saved x_{this, Part::input};

 private:
  kernels::Activation f_;
};

class DropoutNode final : public Node {
 public:
  explicit DropoutNode(const kernels::Dropout& forward) : Node("dropout"), forward_(forward) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    kernels::Dropout backward = forward_;
    Tensor dx = ctx.allocate(dys[0].shape(), dys[0].dtype(), "dropout dx");
    backward.x = dys[0];
    backward.y = dx;
    const Tensor ids = ctx.rows->own(ctx.rows->token_id);
    backward.row_id = ids;
    ctx.launch(backward);
    return {std::move(dx)};
  }

 private:
  kernels::Dropout forward_;
};

Tensor activate(const OpCtx& ctx, const Tensor& x, kernels::Activation f) {
  Tensor y = ctx.allocate(x.shape(), x.dtype(), "activation");
  ctx.launch(kernels::ActivationForward{.activation = f, .x = x, .up = {}, .y = y});
  return y;
}

Tensor activate_gated(const OpCtx& ctx, const Tensor& x, kernels::Activation f) {
  const std::int64_t cols = x.cols() / 2;
  Tensor y = ctx.allocate({x.rows(), cols}, x.dtype(), "gated_activation");
  ctx.launch(kernels::ActivationForward{
      .activation = f, .x = x.columns(0, cols), .up = x.columns(cols, cols), .y = y});
  return y;
}

using Activate = Tensor (*)(const OpCtx&, const Tensor&, kernels::Activation);

// Records an activation node and, if the policy says so, lets consumers compute y again from x.
template <class N>
Var record_activation(const OpCtx& ctx, const Var& x, kernels::Activation f, Activate activate) {
  Tensor y = activate(ctx, x.tensor, f);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<N>(f);
  node->x_.set(x);
  Var result = ctx.tape->record_one(std::move(node), {&x}, std::move(y));
  if (ctx.recomputes("activation")) {
    result.source = made_again(
        x, [f, activate](const OpCtx& again, const Tensor& of) { return activate(again, of, f); });
  }
  return result;
}

}  // namespace

Var add(const OpCtx& ctx, const Var& a, const Var& b) {
  Tensor y = ctx.allocate(a.tensor.shape(), a.tensor.dtype(), "add");
  ctx.launch(kernels::Add{.a = a.tensor, .b = b.tensor, .y = y});
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<AddNode>(), {&a, &b}, std::move(y));
}

Var activation(const OpCtx& ctx, const Var& x, kernels::Activation f) {
  return record_activation<ActivationNode>(ctx, x, f, activate);
}

Var gated_activation(const OpCtx& ctx, const Var& x, kernels::Activation f) {
  require(x.tensor.cols() % 2 == 0, "gate and up side by side need an even width, not {}",
          x.tensor.cols());
  return record_activation<GatedActivationNode>(ctx, x, f, activate_gated);
}

Var dropout(const OpCtx& ctx, const Var& x, double p, std::string_view name) {
  if (p == 0 || !ctx.training) return x;
  const Tensor ids = ctx.rows->own(ctx.rows->token_id);
  kernels::Dropout forward{.x = x.tensor,
                           .row_id = ids,
                           .y = {},
                           .p = p,
                           .key = philox_key(ctx.step.seed, "dropout", name),
                           .step = ctx.step.step,
                           .scalars = ctx.step.scalars};
  Tensor y = ctx.allocate(x.tensor.shape(), x.tensor.dtype(), "dropout");
  forward.y = y;
  ctx.launch(forward);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  forward.x = forward.y = forward.row_id = {};
  return ctx.tape->record_one(std::make_unique<DropoutNode>(forward), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
