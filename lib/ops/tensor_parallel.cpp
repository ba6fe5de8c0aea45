#include "lib/ops/tensor_parallel.hpp"

#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

bool tp_is_split(const OpCtx& ctx) { return ctx.mesh != nullptr && ctx.mesh->size(Axis::tp) > 1; }

bool tp_shares_rows(const OpCtx& ctx) {
  return tp_is_split(ctx) && ctx.rows != nullptr && ctx.rows->shared();
}

Tensor gather_tp_rows(const OpCtx& ctx, const Tensor& own, std::string_view site) {
  Tensor all = ctx.allocate({ctx.rows->rows(), own.cols()}, own.dtype(), "rows of all tp ranks");
  ctx.mesh->axis(Axis::tp).all_gather(own, all, site).wait();
  return all;
}

Tensor sum_over_tp(const OpCtx& ctx, Tensor terms, std::string_view site) {
  Communicator& axis = ctx.mesh->axis(Axis::tp);
  if (!tp_shares_rows(ctx)) {
    axis.all_reduce(terms, ReduceOp::sum, site).wait();
    return terms;
  }
  Tensor own = ctx.allocate({ctx.rows->own_rows, terms.cols()}, terms.dtype(), "own rows of a sum");
  axis.reduce_scatter(terms, own, site).wait();
  return own;
}

namespace {

class CopyToTpNode final : public Node {
 public:
  CopyToTpNode() : Node("copy_to_tp") {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    require(dys[0].unique(), "{}: the gradient is shared", op());
    return {sum_over_tp(ctx, std::move(dys[0]), op())};
  }
};

// Of a sum of which each rank keeps its own rows. Where each keeps the whole, the gradient of a
// term is that of the sum and no node is needed.
class ReduceFromTpNode final : public Node {
 public:
  ReduceFromTpNode() : Node("reduce_from_tp") {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {gather_tp_rows(ctx, dys[0], op())};
  }
};

}  // namespace

Var copy_to_tp(const OpCtx& ctx, const Var& x) {
  if (!tp_is_split(ctx)) return x;
  const bool gathers = tp_shares_rows(ctx);
  Tensor all = gathers ? gather_tp_rows(ctx, x.tensor, "copy_to_tp") : x.tensor;
  if (ctx.tape == nullptr || !x.needs_grad()) return {std::move(all), -1, x.source};
  Var y = ctx.tape->record_one(std::make_unique<CopyToTpNode>(), {&x}, std::move(all));
  if (!gathers) {
    y.source = x.source;
    return y;
  }
  // To keep the own rows and to gather again is what sharing them is for.
  y.source = made_again(x, [](const OpCtx& again, const Tensor& own) {
    return gather_tp_rows(again, own, "copy_to_tp again");
  });
  return y;
}

Var reduce_from_tp(const OpCtx& ctx, Var y) {
  if (!tp_is_split(ctx)) return y;
  Tensor sum = sum_over_tp(ctx, std::move(y.tensor), "reduce_from_tp");
  if (!tp_shares_rows(ctx) || ctx.tape == nullptr || !y.needs_grad()) {
    return {std::move(sum), y.id, nullptr};
  }
  return ctx.tape->record_one(std::make_unique<ReduceFromTpNode>(), {&y}, std::move(sum));
}

}  // namespace llmtrain::ops
