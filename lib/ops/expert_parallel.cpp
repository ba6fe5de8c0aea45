#include "lib/ops/expert_parallel.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/elementwise.hpp"
#include "kernels/experts.hpp"
#include "lib/base/require.hpp"
#include "lib/mesh/mesh.hpp"

namespace llmtrain::ops {

bool shares_experts(const OpCtx& ctx) {
  return ctx.mesh != nullptr && ctx.mesh->experts().size() > 1;
}

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

// For what comes to `here` experts when every member has `rows` rows, of which an expert takes
// `taken` at most: a row chooses an expert once.
std::int64_t room_for(const MeshShape& shape, std::int64_t rows, std::int64_t top_k,
                      std::int64_t here, std::int64_t taken) {
  const std::int64_t all = shape.ep * std::min(rows * std::min(top_k, here), here * taken);
  if (shape.ep_room == 0) return all;
  return std::min(
      all, static_cast<std::int64_t>(std::ceil(shape.ep_room * static_cast<double>(rows * top_k))));
}

std::vector<std::int64_t> times(std::vector<std::int64_t> counts, std::int64_t factor) {
  for (std::int64_t& count : counts) count *= factor;
  return counts;
}

Tensor bring(const OpCtx& ctx, const Tensor& x, const ExpertExchange& exchange) {
  const std::int64_t room = exchange.sorted.source.numel(), cols = x.cols();
  const Tensor came = ctx.allocate({room, cols}, x.dtype(), "rows of all senders");
  exchange.group
      ->all_to_all_parts(x, times(exchange.sends, cols), came, times(exchange.receives, cols),
                         "to_experts")
      .wait();
  Tensor y = ctx.allocate({room, cols}, x.dtype(), "rows of the experts here");
  ctx.launch(kernels::GatherRows{
      .x = came, .source = exchange.sorted.source, .offsets = exchange.sorted.offsets, .y = y});
  return y;
}

Tensor return_rows(const OpCtx& ctx, const Tensor& y, const ExpertExchange& exchange) {
  const std::int64_t cols = y.cols();
  const Tensor go = ctx.allocate(y.shape(), y.dtype(), "rows for all senders");
  ctx.launch(kernels::CombineRows{.x = y, .place = exchange.sorted.place, .y = go});
  Tensor x = ctx.allocate({exchange.sent_rows, cols}, y.dtype(), "rows from experts");
  if (!exchange.sends_all) ctx.launch(kernels::Fill{.y = x, .value = 0});
  exchange.group
      ->all_to_all_parts(go, times(exchange.receives, cols), x, times(exchange.sends, cols),
                         "from_experts")
      .wait();
  return x;
}

class ToExpertsNode final : public Node {
 public:
  explicit ToExpertsNode(ExpertExchange exchange)
      : Node("to_experts"), exchange_(std::move(exchange)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {return_rows(ctx, dys[0], exchange_)};
  }

 private:
  ExpertExchange exchange_;
};

class FromExpertsNode final : public Node {
 public:
  explicit FromExpertsNode(ExpertExchange exchange)
      : Node("from_experts"), exchange_(std::move(exchange)) {}
  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    return {bring(ctx, dys[0], exchange_)};
  }

 private:
  ExpertExchange exchange_;
};

}  // namespace

ExpertExchange exchange_of(const OpCtx& ctx, const SortedRows& sorted, std::int64_t rows,
                           std::int64_t top_k) {
  Communicator& group = ctx.mesh->experts();
  const auto members = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> mine = read_offsets(sorted);
  const std::size_t experts = mine.size() - 1, here = experts / members;
  mine.push_back(rows);
  const Told told{group.gather_numbers(mine, "rows of experts"), experts};
  ExpertExchange exchange{.group = &group,
                          .sent_rows = sorted.source.numel(),
                          .sends_all = !sorted.capacity.has_value()};
  std::int64_t most_rows = 0;
  for (std::size_t m = 0; m < members; ++m) {
    const auto count = [&](std::size_t from, std::size_t to) {
      return told.offsets(from)[(to + 1) * here] - told.offsets(from)[to * here];
    };
    const auto self = static_cast<std::size_t>(group.rank());
    exchange.sends.push_back(count(self, m));
    exchange.receives.push_back(count(m, self));
    most_rows = std::max(most_rows, told.rows(m));
  }
  exchange.sorted.expected =
      std::accumulate(exchange.receives.begin(), exchange.receives.end(), std::int64_t{0});
  const std::int64_t taken =
      sorted.capacity ? most_rows / ctx.rows->rows_per_sequence * *sorted.capacity : most_rows;
  const std::int64_t room =
      room_for(ctx.mesh->shape(), most_rows, top_k, static_cast<std::int64_t>(here), taken);
  require<DoesNotFitError>(
      *exchange.sorted.expected <= room,
      "the experts of rank {} got {} tokens of a micro-batch, {:.2f} times their "
      "even share, with parallelism.ep_room {}; raise it, or leave it out",
      ctx.mesh->rank(), *exchange.sorted.expected,
      static_cast<double>(*exchange.sorted.expected) / static_cast<double>(most_rows * top_k),
      ctx.mesh->shape().ep_room);
  const Tensor expert = ctx.allocate({room}, DType::i32, "experts of rows that come");
  if (!expert.device().is_meta()) {
    const auto values = experts_of(told, group, static_cast<std::size_t>(room));
    expert.device().copy_from_host(expert, std::as_bytes(std::span(values)));
  }
  const auto expected = exchange.sorted.expected;
  exchange.sorted = sort_by_expert(ctx, expert, static_cast<std::int64_t>(here));
  exchange.sorted.expected = expected;
  return exchange;
}

Var to_experts(const OpCtx& ctx, const Var& x, const ExpertExchange& exchange) {
  Tensor y = bring(ctx, x.tensor, exchange);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<ToExpertsNode>(exchange), {&x}, std::move(y));
}

Var from_experts(const OpCtx& ctx, const Var& x, const ExpertExchange& exchange) {
  Tensor y = return_rows(ctx, x.tensor, exchange);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<FromExpertsNode>(exchange), {&x}, std::move(y));
}

}  // namespace llmtrain::ops
