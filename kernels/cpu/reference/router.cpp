#include "kernels/router.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/choice_order.hpp"
#include "kernels/cpu/element.hpp"
#include "kernels/cpu/router_row.hpp"
#include "kernels/cpu/rows.hpp"

namespace llmtrain::kernels::reference {

namespace {

template <class F>
void with_logits(DType dtype, const F& f) {
  dtype == DType::f64 ? f.template operator()<double>() : f.template operator()<float>();
}

void route_tokens(const KernelCtx&, const RouteTokens& op, const View&) {
  with_logits(op.logits.dtype, [&]<class T>() {
    RouterRow<T> row(op.rule, op.logits.cols());
    for (std::int64_t i = 0; i < op.logits.rows(); ++i) route_row(op, i, row);
  });
}

void limit_choices(const KernelCtx&, const LimitChoices& op, const View&) {
  const auto* expert = op.expert.as<std::int32_t>();
  auto* kept = op.kept.as<std::int32_t>();
  with_logits(op.score.dtype, [&]<class T>() {
    const ChoiceOrder<T> order(op);
    std::vector<std::vector<std::int64_t>> choices(
        static_cast<std::size_t>(op.sequences * op.experts));
    for (std::int64_t c = 0; c < op.expert.numel(); ++c) {
      check_expert(LimitChoices::name, c, expert[c], op.experts);
      kept[c] = -1;
      if (expert[c] < 0) continue;
      choices[static_cast<std::size_t>(order.sequence(c) * op.experts + expert[c])].push_back(c);
    }
    for (std::vector<std::int64_t>& of_expert : choices) {
      std::ranges::sort(of_expert, [&](auto a, auto b) { return order.before(a, b); });
      if (std::ssize(of_expert) > op.capacity) {
        of_expert.resize(static_cast<std::size_t>(op.capacity));
      }
      for (const std::int64_t c : of_expert) kept[c] = expert[c];
    }
  });
}

void count_choices(const KernelCtx&, const CountChoices& op, const View&) {
  with_logits(op.choices.dtype, [&]<class T>() {
    const std::int64_t experts = op.choices.cols();
    const std::int64_t of_sequence = op.expert.numel() / op.choices.rows();
    for (std::int64_t s = 0; s < op.choices.rows(); ++s) {
      T* counts = op.choices.row<T>(s);
      std::fill_n(counts, experts, T{0});
      for (std::int64_t c = s * of_sequence; c < (s + 1) * of_sequence; ++c) {
        const std::int32_t e = op.expert.as<std::int32_t>()[c];
        check_expert(CountChoices::name, c, e, experts);
        if (e >= 0) counts[e] += 1;
      }
    }
  });
}

void route_tokens_backward(const KernelCtx&, const RouteTokensBackward& op, const View&) {
  with_logits(op.logits.dtype, [&]<class T>() {
    RouterRow<T> row(op.rule, op.logits.cols());
    for (std::int64_t i = 0; i < op.logits.rows(); ++i) route_row_backward(op, i, row);
  });
}

void balance_router(const KernelCtx&, const BalanceRouter& op, const View&) {
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  with_logits(op.bias.dtype, [&]<class T>() {
    const T* choices = op.choices.as<T>();
    const std::int64_t experts = op.bias.numel();
    // As many times each count as there are experts: whole numbers, which no mean need be.
    const double sum = std::accumulate(choices, choices + experts, 0.0);
    for (std::int64_t e = 0; e < experts; ++e) {
      const double count = static_cast<double>(choices[e]) * static_cast<double>(experts);
      if (count != sum) op.bias.as<T>()[e] += static_cast<T>(count < sum ? op.speed : -op.speed);
    }
  });
}

}  // namespace

void add_router_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RouteTokens, route_tokens>());
  rows.push_back(row_of<LimitChoices, limit_choices>());
  rows.push_back(row_of<CountChoices, count_choices>());
  rows.push_back(row_of<RouteTokensBackward, route_tokens_backward>());
  rows.push_back(row_of<BalanceRouter, balance_router>());
}

}  // namespace llmtrain::kernels::reference
