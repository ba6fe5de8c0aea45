#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

namespace {

class CopyToTpNode final : public Node {
 public:
  CopyToTpNode() : Node("copy_to_tp") {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    Tensor dx = std::move(dys[0]);
    require(dx.unique(), "copy_to_tp: the gradient is shared");
    ctx.mesh->axis(Axis::tp).all_reduce(dx, ReduceOp::sum, "copy_to_tp").wait();
    return {std::move(dx)};
  }
};

bool is_split(const OpCtx& ctx) { return ctx.mesh != nullptr && ctx.mesh->size(Axis::tp) > 1; }

}  // namespace

Var copy_to_tp(const OpCtx& ctx, const Var& x) {
  if (!is_split(ctx) || ctx.tape == nullptr || !x.needs_grad()) return x;
  Var y = ctx.tape->record_one(std::make_unique<CopyToTpNode>(), {&x}, x.tensor);
  y.source = x.source;
  return y;
}

Var reduce_from_tp(const OpCtx& ctx, Var y) {
  if (is_split(ctx)) {
    ctx.mesh->axis(Axis::tp).all_reduce(y.tensor, ReduceOp::sum, "reduce_from_tp").wait();
  }
  return y;
}

}  // namespace llmtrain::ops
