// Rows on their way to experts: as many to every rank, whatever was chosen.
#include <algorithm>
#include <cmath>

#include "kernels/expert_slots.hpp"
#include "kernels/experts.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/expert_parallel.hpp"

namespace llmtrain::ops {

namespace {

// All members of a training step have as many rows; the last ones of an evaluation may have fewer.
std::int64_t most_rows(const OpCtx& ctx, std::int64_t mine) {
  if (ctx.training) return mine;
  return std::ranges::max(ctx.mesh->experts().gather_values(mine, "rows of experts"));
}

class BoundedExchange final : public ExpertExchange {
 public:
  BoundedExchange(const OpCtx& ctx, const RowsToSend& send, double room)
      : group_(&ctx.mesh->experts()) {
    const std::int64_t ranks = group_->size();
    const std::int64_t rows = most_rows(ctx, send.rows);
    const std::int64_t experts = send.sorted.offsets.numel() - 1, here = experts / ranks;
    const double even = static_cast<double>(rows * send.top_k) / static_cast<double>(ranks);
    // A row chooses an expert once.
    std::int64_t slots =
        std::min(rows * std::min(send.top_k, here), here * most_taken(ctx, send.sorted, rows));
    if (room > 0) slots = std::min(slots, static_cast<std::int64_t>(std::ceil(room * even)));
    source_ = ctx.allocate({ranks * slots}, DType::i32, "rows in slots");
    place_ = ctx.allocate({send.sorted.source.numel()}, DType::i32, "slots of rows");
    const Tensor goes = ctx.allocate({ranks * slots}, DType::i32, "experts of rows that go");
    ctx.launch(kernels::AssignSlots{.offsets = send.sorted.offsets,
                                    .source = source_,
                                    .expert = goes,
                                    .place = place_,
                                    .needed = send.needed,
                                    .ranks = ranks,
                                    .even_rows = even});
    const Tensor comes = ctx.allocate({ranks * slots}, DType::i32, "experts of rows that come");
    group_->all_to_all(goes, comes, "to_experts").wait();
    sorted_ = sort_by_expert(ctx, comes, here);
    sorted_.expected =
        std::min(ranks * slots, send.sorted.expected.value_or(send.sorted.source.numel()));
  }

  Tensor bring(const OpCtx& ctx, const Tensor& x) const override {
    const Tensor go = taken(ctx, x, source_, "rows for all ranks");
    const Tensor came = ctx.allocate(go.shape(), go.dtype(), "rows of all senders");
    group_->all_to_all(go, came, "to_experts").wait();
    Tensor y = ctx.allocate(go.shape(), go.dtype(), "rows of the experts here");
    ctx.launch(kernels::GatherRows{
        .x = came, .source = sorted_.source, .offsets = sorted_.offsets, .y = y});
    return y;
  }

  Tensor give_back(const OpCtx& ctx, const Tensor& y) const override {
    const Tensor go = ctx.allocate(y.shape(), y.dtype(), "rows for all senders");
    ctx.launch(kernels::CombineRows{.x = y, .place = sorted_.place, .y = go});
    const Tensor came = ctx.allocate(y.shape(), y.dtype(), "rows of all ranks");
    group_->all_to_all(go, came, "from_experts").wait();
    return taken(ctx, came, place_, "rows from experts");
  }

 private:
  static Tensor taken(const OpCtx& ctx, const Tensor& x, const Tensor& from, std::string_view tag) {
    Tensor y = ctx.allocate({from.numel(), x.cols()}, x.dtype(), tag);
    ctx.launch(kernels::TakeRows{.x = x, .from = from, .y = y});
    return y;
  }

  Communicator* group_;
  Tensor source_, place_;  // as of kernels::AssignSlots
};

}  // namespace

SharedExchange bounded_exchange(const OpCtx& ctx, const RowsToSend& send, double room) {
  return std::make_shared<BoundedExchange>(ctx, send, room);
}

}  // namespace llmtrain::ops
