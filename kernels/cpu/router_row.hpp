#pragma once
/// One row of a router, forth and back, in the type of its logits. A row is a few hundred numbers
/// between two products of thousands times as many, so the fast path is this, by several threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "kernels/cpu/element.hpp"
#include "kernels/router.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels {

/// InternalError for an id that is neither -1 nor an expert's.
inline void check_expert(std::string_view kernel, std::int64_t choice, std::int32_t expert,
                         std::int64_t experts) {
  require(expert >= -1 && expert < experts, "{}: choice {} is expert {} of {}", kernel, choice,
          expert, experts);
}

/// What is known of a row, and memory for it.
template <class T>
struct RouterRow {
  RouterRow(const RouterRule& rule, std::int64_t experts)
      : rule(rule),
        scores(static_cast<std::size_t>(experts)),
        keys(scores.size()),
        slopes(scores.size()),
        order(scores.size()),
        groups(static_cast<std::size_t>(rule.groups)) {}

  /// scores[e] and the sum of all; for softmax that is 1.
  void score(const T* z);
  /// The first top_k of `order` become the experts with the largest keys.
  void choose();

  RouterRule rule;
  std::vector<T> scores, keys, slopes;
  std::vector<std::int32_t> order;
  std::vector<std::pair<T, std::int32_t>> groups;
  T log_sum = 0;    // log sum exp z
  T score_sum = 0;  // of all experts
};

template <class T>
void RouterRow<T>::score(const T* z) {
  const std::size_t experts = scores.size();
  const T largest = *std::max_element(z, z + experts);
  T sum = 0;
  for (std::size_t e = 0; e < experts; ++e) sum += scores[e] = std::exp(z[e] - largest);
  log_sum = largest + std::log(sum);
  if (rule.scores == RouterScores::softmax) {
    for (T& s : scores) s /= sum;
    score_sum = 1;
    return;
  }
  for (std::size_t e = 0; e < experts; ++e) scores[e] = 1 / (1 + std::exp(-z[e]));
  score_sum = std::accumulate(scores.begin(), scores.end(), T{0});
}

template <class T>
void RouterRow<T>::choose() {
  // A NaN is no larger than anything, and no smaller: it goes last.
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  for (T& key : keys) key = std::isnan(key) ? kNone : key;
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    return keys[i] != keys[j] ? keys[i] > keys[j] : a < b;
  };
  std::iota(order.begin(), order.end(), 0);
  auto end = order.end();
  if (rule.kept_groups < rule.groups) {
    const std::size_t of_group = keys.size() / groups.size();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      T first = kNone, second = kNone;
      for (std::size_t e = g * of_group; e < (g + 1) * of_group; ++e) {
        second = std::max(second, std::min(first, keys[e]));
        first = std::max(first, keys[e]);
      }
      groups[g] = {of_group > 1 ? first + second : first, static_cast<std::int32_t>(g)};
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    end = order.begin();
    for (std::int64_t k = 0; k < rule.kept_groups; ++k) {
      const auto begin =
          static_cast<std::int32_t>(of_group) * groups[static_cast<std::size_t>(k)].second;
      std::iota(end, end + static_cast<std::ptrdiff_t>(of_group), begin);
      end += static_cast<std::ptrdiff_t>(of_group);
    }
  }
  std::partial_sort(order.begin(), order.begin() + rule.top_k, end, before);
}

/// The sum of the chosen scores that normalised weights are shares of.
template <class T>
T chosen_sum(const RouterRow<T>& row, const std::int32_t* chosen) {
  T sum = row.rule.scores == RouterScores::sigmoid ? T(1e-20) : T{0};
  for (std::int64_t k = 0; k < row.rule.top_k; ++k) {
    sum += row.scores[static_cast<std::size_t>(chosen[k])];
  }
  return sum;
}

template <class T>
void route_row(const RouteTokens& op, std::int64_t i, RouterRow<T>& row) {
  row.score(op.logits.row<T>(i));
  for (std::size_t e = 0; e < row.keys.size(); ++e) {
    row.keys[e] = row.scores[e] + (op.bias.defined() ? op.bias.as<T>()[e] : T{0});
  }
  row.choose();
  const std::int64_t top_k = op.rule.top_k;
  std::int32_t* expert = op.expert.as<std::int32_t>() + i * top_k;
  T* weight = op.weight.as<T>() + i * top_k;
  std::copy_n(row.order.begin(), top_k, expert);
  const T whole = op.rule.normalize ? chosen_sum(row, expert) : T{1};
  // NaN in any logit is one in all weights: a sigmoid of another expert would hide it.
  const T factor = std::isnan(row.log_sum) ? row.log_sum : static_cast<T>(op.rule.scale) / whole;
  for (std::int64_t k = 0; k < top_k; ++k) {
    weight[k] = factor * row.scores[static_cast<std::size_t>(expert[k])];
  }
  if (!op.score.defined()) return;
  for (std::int64_t k = 0; k < top_k; ++k) {
    const T score = row.scores[static_cast<std::size_t>(expert[k])];
    op.score.as<T>()[i * top_k + k] = std::isnan(row.log_sum) ? row.log_sum : score;
  }
}

/// Adds to row.slopes, which are the gradients of the scores, those of the weights.
template <class T>
void add_weight_slopes(const RouteTokensBackward& op, std::int64_t i, RouterRow<T>& row) {
  if (!op.dweight.defined()) return;
  const std::int64_t top_k = op.rule.top_k;
  const std::int32_t* expert = op.expert.as<std::int32_t>() + i * top_k;
  const T* dweight = op.dweight.as<T>() + i * top_k;
  const T scale = static_cast<T>(op.rule.scale);
  T whole = 1, mean = 0;
  if (op.rule.normalize) {
    whole = chosen_sum(row, expert);
    for (std::int64_t k = 0; k < top_k; ++k) {
      mean += dweight[k] * row.scores[static_cast<std::size_t>(expert[k])] / whole;
    }
  }
  for (std::int64_t k = 0; k < top_k; ++k) {
    row.slopes[static_cast<std::size_t>(expert[k])] += scale * (dweight[k] - mean) / whole;
  }
}

/// As choices are counted over T tokens of the row's sequence: d balance / d p_e.
template <class T>
T balance_slope(const RouteTokensBackward& op, std::int64_t i, std::size_t e) {
  const std::int64_t rows_of_sequence = op.logits.rows() / op.choices.rows();
  return static_cast<T>(op.logits.cols()) / static_cast<T>(op.losses.seq_len) *
         op.choices.row<T>(i / rows_of_sequence)[e];
}

template <class T>
void route_row_backward(const RouteTokensBackward& op, std::int64_t i, RouterRow<T>& row) {
  const T* z = op.logits.row<T>(i);
  const std::size_t experts = row.scores.size();
  const T grad_scale = static_cast<T>(op.grad_scale_now());
  row.score(z);
  std::fill(row.slopes.begin(), row.slopes.end(), T{0});
  add_weight_slopes(op, i, row);
  if (op.choices.defined()) {
    // balance = sum_e slope_e p_e with p = score / score_sum.
    T balance = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      balance += balance_slope<T>(op, i, e) * row.scores[e] / row.score_sum;
    }
    const T factor = static_cast<T>(op.losses.balance) * grad_scale / row.score_sum;
    for (std::size_t e = 0; e < experts; ++e) {
      // For softmax the mean is subtracted with the others' below; it vanishes there.
      const T mean = op.rule.scores == RouterScores::sigmoid ? balance : T{0};
      row.slopes[e] += factor * (balance_slope<T>(op, i, e) - mean);
    }
    if (op.values.defined()) op.values.as<T>()[i] = balance;
  }
  if (op.values.defined()) op.values.as<T>()[op.logits.rows() + i] = row.log_sum * row.log_sum;
  T mean = 0;
  if (op.rule.scores == RouterScores::softmax) {
    for (std::size_t e = 0; e < experts; ++e) mean += row.slopes[e] * row.scores[e];
  }
  const T z_factor = 2 * static_cast<T>(op.losses.z) * grad_scale * row.log_sum;
  with_type(op.dlogits.dtype, [&]<class D>() {
    D* dlogits = op.dlogits.row<D>(i);
    for (std::size_t e = 0; e < experts; ++e) {
      const T s = row.scores[e];
      const T slope = op.rule.scores == RouterScores::softmax ? s * (row.slopes[e] - mean)
                                                              : s * (1 - s) * row.slopes[e];
      dlogits[e] = narrow<D>(static_cast<Wide<D>>(slope + z_factor * std::exp(z[e] - row.log_sum)));
    }
  });
}

}  // namespace llmtrain::kernels
