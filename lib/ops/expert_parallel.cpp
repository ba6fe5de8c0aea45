#include "lib/ops/expert_parallel.hpp"

#include <utility>

#include "lib/mesh/mesh.hpp"

namespace llmtrain::ops {

bool shares_experts(const OpCtx& ctx) {
  return ctx.mesh != nullptr && ctx.mesh->experts().size() > 1;
}

SharedExchange exchange_of(const OpCtx& ctx, const RowsToSend& send, bool whole_sequences) {
  const double room = ctx.mesh->shape().ep_room;
  if (room == 0) return exact_exchange(ctx, send);
  return bounded_exchange(ctx, send, whole_sequences ? room : 0);
}

namespace {

class ToExpertsNode final : public Node {
 public:
  explicit ToExpertsNode(SharedExchange exchange)
      : Node("to_experts"), exchange_(std::move(exchange)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {exchange_->give_back(ctx, dys[0])};
  }

 private:
  SharedExchange exchange_;
};

class FromExpertsNode final : public Node {
 public:
  explicit FromExpertsNode(SharedExchange exchange)
      : Node("from_experts"), exchange_(std::move(exchange)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {exchange_->bring(ctx, dys[0])};
  }

 private:
  SharedExchange exchange_;
};

}  // namespace

Var to_experts(const OpCtx& ctx, const Var& x, const SharedExchange& exchange) {
  Tensor y = exchange->bring(ctx, x.tensor);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<ToExpertsNode>(exchange), {&x}, std::move(y));
}

Var from_experts(const OpCtx& ctx, const Var& x, const SharedExchange& exchange) {
  Tensor y = exchange->give_back(ctx, x.tensor);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<FromExpertsNode>(exchange), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
