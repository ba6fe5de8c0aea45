#include "kernels/router.hpp"

#include <algorithm>

#include "kernels/cpu/choice_order.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/router_row.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::fast {

namespace {

constexpr std::int64_t kRows = 64;

void route_tokens(const KernelCtx& ctx, const RouteTokens& op, const View& workspace) {
  if (op.logits.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.logits.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    RouterRow<float> row(op.rule, op.logits.cols());
    for (std::int64_t i = begin; i < end; ++i) route_row(op, i, row);
  });
}

void route_tokens_backward(const KernelCtx& ctx, const RouteTokensBackward& op,
                           const View& workspace) {
  if (op.logits.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.logits.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    RouterRow<float> row(op.rule, op.logits.cols());
    for (std::int64_t i = begin; i < end; ++i) route_row_backward(op, i, row);
  });
}

/// Choices by sequence and expert, in their order, and begin[s * experts + e] up to the next one's
/// those of expert e in sequence s.
struct SortedChoices {
  std::int32_t* choice;
  std::int32_t* begin;
};

SortedChoices sort_choices(const LimitChoices& op, const ChoiceOrder<float>& order,
                           const View& workspace) {
  const auto* expert = op.expert.as<std::int32_t>();
  const std::int64_t n = op.expert.numel(), bins = op.sequences * op.experts;
  const SortedChoices sorted{workspace.as<std::int32_t>() + bins + 1, workspace.as<std::int32_t>()};
  const auto bin = [&](std::int64_t c) { return order.sequence(c) * op.experts + expert[c]; };
  std::fill_n(sorted.begin, bins + 1, 0);
  for (std::int64_t c = 0; c < n; ++c) {
    check_expert(LimitChoices::name, c, expert[c], op.experts);
    if (expert[c] >= 0) ++sorted.begin[bin(c)];
  }
  std::int32_t end = 0;
  for (std::int64_t b = 0; b <= bins; ++b) sorted.begin[b] = end += sorted.begin[b];
  // From the last one on: each of them moves the beginning of its bin to itself.
  for (std::int64_t c = n - 1; c >= 0; --c) {
    if (expert[c] >= 0) sorted.choice[--sorted.begin[bin(c)]] = static_cast<std::int32_t>(c);
  }
  return sorted;
}

void limit_choices(const KernelCtx& ctx, const LimitChoices& op, const View& workspace) {
  if (op.score.dtype == DType::f64) return run_reference(ctx, op, workspace);
  const auto* expert = op.expert.as<std::int32_t>();
  auto* kept = op.kept.as<std::int32_t>();
  const ChoiceOrder<float> order(op);
  const SortedChoices sorted = sort_choices(op, order, workspace);
  std::fill_n(kept, op.kept.numel(), -1);
  parallel_tasks(ctx.threads, op.sequences * op.experts, [&](int, std::int64_t bin) {
    std::int32_t* begin = sorted.choice + sorted.begin[bin];
    std::int32_t* end = sorted.choice + sorted.begin[bin + 1];
    if (end - begin > op.capacity) {
      std::int32_t* full = begin + op.capacity;
      std::nth_element(begin, full, end, [&](auto a, auto b) { return order.before(a, b); });
      end = full;
    }
    for (; begin != end; ++begin) kept[*begin] = expert[*begin];
  });
}

}  // namespace

void add_router_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RouteTokens, route_tokens>());
  rows.push_back(row_of<LimitChoices, limit_choices>());
  rows.push_back(row_of<RouteTokensBackward, route_tokens_backward>());
}

}  // namespace llmtrain::kernels::fast
