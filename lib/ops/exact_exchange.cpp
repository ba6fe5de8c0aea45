// Rows on their way to experts: exactly those that there are.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/elementwise.hpp"
#include "kernels/experts.hpp"
#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/ops/expert_parallel.hpp"

namespace llmtrain::ops {

namespace {

// Where the rows of each expert begin, and at last their number. On meta, where nobody chooses, all
// experts have as many, and no more than they have room for.
std::vector<std::int64_t> read_offsets(const SortedRows& sorted) {
  const auto n = static_cast<std::size_t>(sorted.offsets.numel());
  std::vector<std::int32_t> values(n);
  if (sorted.offsets.device().is_meta()) {
    const std::int64_t all = sorted.expected.value_or(sorted.source.numel());
    for (std::size_t e = 0; e < n; ++e) {
      values[e] = static_cast<std::int32_t>(all * static_cast<std::int64_t>(e) /
                                            static_cast<std::int64_t>(n - 1));
    }
  } else {
    sorted.offsets.device().copy_to_host(std::as_writable_bytes(std::span(values)), sorted.offsets);
  }
  return {values.begin(), values.end()};
}

// The offsets and the number of rows of every member.
struct Told {
  std::vector<std::int64_t> numbers;
  std::size_t experts = 0;
  const std::int64_t* offsets(std::size_t member) const { return &numbers[member * (experts + 2)]; }
  std::int64_t rows(std::size_t member) const { return offsets(member)[experts + 1]; }
};

// The expert of each row that comes, in the order of the members; -1 behind the last.
std::vector<std::int32_t> experts_of(const Told& told, const Communicator& group,
                                     std::size_t room) {
  const std::size_t here = told.experts / static_cast<std::size_t>(group.size());
  const std::size_t first = here * static_cast<std::size_t>(group.rank());
  std::vector<std::int32_t> experts;
  experts.reserve(room);
  for (std::size_t m = 0; m < static_cast<std::size_t>(group.size()); ++m) {
    for (std::size_t e = 0; e < here; ++e) {
      const std::int64_t* begin = told.offsets(m) + first + e;
      experts.insert(experts.end(), static_cast<std::size_t>(begin[1] - begin[0]),
                     static_cast<std::int32_t>(e));
    }
  }
  experts.resize(room, -1);
  return experts;
}

std::vector<std::int64_t> times(std::vector<std::int64_t> counts, std::int64_t factor) {
  for (std::int64_t& count : counts) count *= factor;
  return counts;
}

class ExactExchange final : public ExpertExchange {
 public:
  ExactExchange(const OpCtx& ctx, const RowsToSend& send)
      : group_(&ctx.mesh->experts()),
        sent_rows_(send.sorted.source.numel()),
        sends_all_(!send.sorted.capacity.has_value()) {
    const Told told = tell(send);
    const auto here = static_cast<std::int64_t>(told.experts) / group_->size();
    std::int64_t most_rows = 0;
    for (int m = 0; m < group_->size(); ++m) {
      const auto member = static_cast<std::size_t>(m);
      sends_.push_back(count(told, group_->rank(), m, here));
      receives_.push_back(count(told, m, group_->rank(), here));
      most_rows = std::max(most_rows, told.rows(member));
    }
    const std::int64_t taken = most_taken(ctx, send.sorted, most_rows);
    // A row chooses an expert once.
    const std::int64_t room =
        group_->size() * std::min(most_rows * std::min(send.top_k, here), here * taken);
    const std::int64_t comes = std::accumulate(receives_.begin(), receives_.end(), std::int64_t{0});
    const Tensor expert = ctx.allocate({room}, DType::i32, "experts of rows that come");
    if (!expert.device().is_meta()) {
      const auto values = experts_of(told, *group_, static_cast<std::size_t>(room));
      expert.device().copy_from_host(expert, std::as_bytes(std::span(values)));
    }
    sorted_ = sort_by_expert(ctx, expert, here);
    sorted_.expected = comes;
  }

  Tensor bring(const OpCtx& ctx, const Tensor& x) const override {
    const std::int64_t room = sorted_.source.numel(), cols = x.cols();
    const Tensor came = ctx.allocate({room, cols}, x.dtype(), "rows of all senders");
    group_->all_to_all_parts(x, times(sends_, cols), came, times(receives_, cols), "to_experts")
        .wait();
    Tensor y = ctx.allocate({room, cols}, x.dtype(), "rows of the experts here");
    ctx.launch(kernels::GatherRows{
        .x = came, .source = sorted_.source, .offsets = sorted_.offsets, .y = y});
    return y;
  }

  Tensor give_back(const OpCtx& ctx, const Tensor& y) const override {
    const std::int64_t cols = y.cols();
    const Tensor go = ctx.allocate(y.shape(), y.dtype(), "rows for all senders");
    ctx.launch(kernels::CombineRows{.x = y, .place = sorted_.place, .y = go});
    Tensor x = ctx.allocate({sent_rows_, cols}, y.dtype(), "rows from experts");
    if (!sends_all_) ctx.launch(kernels::Fill{.y = x, .value = 0});
    group_->all_to_all_parts(go, times(receives_, cols), x, times(sends_, cols), "from_experts")
        .wait();
    return x;
  }

 private:
  Told tell(const RowsToSend& send) const {
    std::vector<std::int64_t> mine = read_offsets(send.sorted);
    const std::size_t experts = mine.size() - 1;
    mine.push_back(send.rows);
    return {group_->gather_numbers(mine, "rows of experts"), experts};
  }
  // Rows from member `from` to member `to`.
  static std::int64_t count(const Told& told, int from, int to, std::int64_t here) {
    const std::int64_t* const offsets = told.offsets(static_cast<std::size_t>(from));
    return offsets[(to + 1) * here] - offsets[to * here];
  }

  Communicator* group_;
  std::vector<std::int64_t> sends_, receives_;  // rows of each member
  std::int64_t sent_rows_;                      // all of `sends_`, and choices that are no expert's
  bool sends_all_;                              // there are none of these
};

}  // namespace

std::int64_t most_taken(const OpCtx& ctx, const SortedRows& sorted, std::int64_t rows) {
  return sorted.capacity ? rows / ctx.rows->rows_per_sequence * *sorted.capacity : rows;
}

SharedExchange exact_exchange(const OpCtx& ctx, const RowsToSend& send) {
  return std::make_shared<ExactExchange>(ctx, send);
}

}  // namespace llmtrain::ops
