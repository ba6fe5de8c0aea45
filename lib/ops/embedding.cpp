#include "kernels/loss.hpp"
#include "lib/ops/ops.hpp"
#include "lib/ops/tensor_parallel.hpp"
#include "lib/ops/vocab_part.hpp"

namespace llmtrain::ops {

namespace {

// One or two look-ups that add up; each table gets the rows of dy by its own ids.
class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(const ParameterGroup& table, Tensor ids) : Node("embedding"), table_(&table) {
    ids_.set(std::move(ids));
  }
  void also(const ParameterGroup& other, Tensor ids) {
    other_ = &other;
    other_ids_.set(std::move(ids));
  }
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    dy_.set(tp_shares_rows(ctx) ? gather_tp_rows(ctx, dys[0], op()) : dys[0]);
    return {};
  }
  bool has_weight_grad() const override { return true; }
  void weight_grad(const OpCtx& ctx) override {
    const Tensor dy = dy_.get(ctx);
    ctx.launch(kernels::EmbeddingBackward{.id = ids_.get(ctx),
                                          .dy = dy,
                                          .dtable = gradient_sink(ctx, *table_),
                                          .part = vocab_part(*table_)});
    if (other_ == nullptr) return;
    ctx.launch(kernels::EmbeddingBackward{
        .id = other_ids_.get(ctx), .dy = dy, .dtable = gradient_sink(ctx, *other_)});
  }

 private:
  const ParameterGroup* table_;
  const ParameterGroup* other_ = nullptr;
  Saved ids_{this, Part::weight};
  Saved other_ids_{this, Part::weight};
  Saved dy_{this, Part::weight};
};

Tensor look_up(const OpCtx& ctx, const Tensor& ids, const ParameterGroup& table) {
  const Tensor& w = table.compute();
  const kernels::VocabPart part = vocab_part(table);
  Tensor y = ctx.allocate({ids.numel(), w.cols()}, w.dtype(), "embedding");
  ctx.launch(kernels::EmbeddingForward{.id = ids, .table = w, .y = y, .part = part});
  // One rank has the row, the others have zeros: the sum is the row.
  return part.whole == 0 ? y : sum_over_tp(ctx, std::move(y), "embedding");
}

}  // namespace

Var embedding(const OpCtx& ctx, const Tensor& ids, const ParameterGroup& table) {
  Tensor y = look_up(ctx, ids, table);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<EmbeddingNode>(table, ids), {}, std::move(y));
}

Var embedding_sum(const OpCtx& ctx, const Tensor& ids, const ParameterGroup& table,
                  const Tensor& other_ids, const ParameterGroup& other_table) {
  Tensor y = look_up(ctx, ids, table);
  const Tensor own_ids = ctx.rows->own(other_ids);
  ctx.launch(kernels::EmbeddingForward{
      .id = own_ids, .table = other_table.compute(), .y = y, .accumulate = true});
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  auto node = std::make_unique<EmbeddingNode>(table, ids);
  node->also(other_table, other_ids);
  return ctx.tape->record_one(std::move(node), {}, std::move(y));
}

}  // namespace llmtrain::ops
