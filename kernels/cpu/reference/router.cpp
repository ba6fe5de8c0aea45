#include "kernels/router.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

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

}  // namespace

void add_router_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RouteTokens, route_tokens>());
  rows.push_back(row_of<CountChoices, count_choices>());
  rows.push_back(row_of<RouteTokensBackward, route_tokens_backward>());
}

}  // namespace llmtrain::kernels::reference
