#pragma once
/// Routers of experts: which ones see a token, with which weights, and how evenly they are used.
/// Legend: E experts, of which each row chooses top_k.

#include "kernels/kernel.hpp"
#include "kernels/step_scalars.hpp"
#include "kernels/update_decision.hpp"

namespace llmtrain::kernels {

/// How a row's logits become scores.
enum class RouterScores : std::uint8_t { softmax, sigmoid };

struct RouterRule {
  std::int64_t top_k = 1;
  RouterScores scores = RouterScores::softmax;
  /// Weights are shares of the sum of the chosen scores.
  bool normalize = false;
  /// Of the weights, after that.
  double scale = 1;
  /// Experts in `groups` of equal size, neighbours together, of which a row chooses from
  /// `kept_groups`: those whose two largest keys have the largest sums, equal ones by number
  /// (DeepSeek-V3, arXiv 2412.19437).
  std::int64_t groups = 1, kept_groups = 1;
};

/// Of each row the top_k experts with the largest keys = score + bias, largest first, equal ones by
/// number; weight = score of the chosen, normalised and scaled as the rule says. A NaN among the
/// logits makes all weights of its row NaN, so that the step is refused, and the choice some valid
/// one. logits [rows, E] fp32 | fp64; expert int32 [rows, top_k]; weight [rows, top_k], bias [E]
/// (or absent) and score [rows, top_k] (the scores of the chosen as they are, or absent) in the
/// dtype of the logits.
struct RouteTokens {
  static constexpr std::string_view name = "route_tokens";
  View logits, bias;
  View expert, weight;
  View score = {};
  RouterRule rule;
  void check() const;
  Cost cost() const;
  DType dtype() const { return logits.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {logits.rows(), logits.cols(), rule.top_k}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Of each sequence's choices of an expert the `capacity` with the largest scores, equal ones by
/// position, NaN before all numbers: it is to be seen. Scores are compared by their first 16 bits
/// (fp32) or 24 (fp64), rounded, so that errors of rounding, which differ between layouts, do not
/// decide between rows that are equal. kept[c] = expert[c] of these, -1 of the others and of what
/// is no choice (-1). expert and kept int32, score fp32 | fp64, [rows, top_k]. A
/// row chooses an expert once at most. Rows are those of `parts` parts of all sequences: first the
/// rows that part 0 has of each sequence, one after the other, equally many each. position int32
/// [rows], in the sequence; absent where the rows of one part are in this order.
struct LimitChoices {
  static constexpr std::string_view name = "limit_choices";
  View expert, score, position;
  View kept;
  std::int64_t experts = 0, sequences = 1, parts = 1, capacity = 0;
  void check() const;
  Cost cost() const;
  DType dtype() const { return score.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {expert.numel(), experts}; }
  std::uint64_t workspace_bytes(int threads) const;
};

/// choices[s, e] = how many of the choices of sequence s are expert e. expert int32 [rows, top_k],
/// where -1 is no choice; choices [sequences, E] fp32 | fp64; the rows are those of the sequences,
/// one after the other, equally many each.
struct CountChoices {
  static constexpr std::string_view name = "count_choices";
  View expert;
  View choices;
  void check() const;
  Cost cost() const;
  DType dtype() const { return choices.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {expert.numel(), choices.cols()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// Two losses that keep a router useful, per row: `balance` = E / T * sum_e choices[s, e] * p_e
/// (Switch Transformer, arXiv 2101.03961, within each sequence of T tokens), with p = softmax(z),
/// or sigmoid(z) over its sum, of the row's logits z; and `z` = logsumexp(z)^2 (ST-MoE, arXiv
/// 2202.08906). Choices are constants to them.
struct RouterLosses {
  /// Factors with which they enter the loss of a row; 0: not at all.
  double balance = 0, z = 0;
  /// T: `choices` may count rows of the sequences that other ranks have.
  std::int64_t seq_len = 0;
  double grad_scale = 1;
};

/// dlogits = the gradient of `weight` through RouteTokens, whose chosen experts are constants, plus
/// grad_scale times that of the row's losses. dweight [rows, top_k] in the dtype of the logits, or
/// absent: zeros. choices as CountChoices left it, for `losses.balance`, else absent; dlogits
/// [rows, E] fp64 | fp32 | bf16 | fp16. `values` [2, rows] in the dtype of the logits, or absent:
/// the losses themselves, balance and z, without their factors.
struct RouteTokensBackward {
  static constexpr std::string_view name = "route_tokens_backward";
  View logits, expert, dweight, choices;
  View dlogits, values;
  RouterRule rule;
  RouterLosses losses;
  /// Where given (StepScalars), its grad_scale counts, as it is when the kernel runs.
  View scalars;
  /// Where given (UpdateDecision), its loss_scale counts, too, as it is when the kernel runs.
  View decision;
  /// For kernels of the CPU.
  double grad_scale_now() const {
    const double scale =
        scalars.defined() ? scalars.as<StepScalars>()->grad_scale : losses.grad_scale;
    return decision.defined() ? scale * decision.as<UpdateDecision>()->loss_scale : scale;
  }
  void check() const;
  Cost cost() const;
  DType dtype() const { return logits.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {logits.rows(), logits.cols(), rule.top_k}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// bias[e] += speed where expert e was chosen less often than the mean expert, -= speed where more
/// often, nothing where as often: balance without a loss (DeepSeek-V3, arXiv 2412.19437; arXiv
/// 2408.15664). A decision (UpdateDecision) that does not apply changes nothing. choices and bias
/// [E], fp32 | fp64; counts are exact below 2^24 | 2^53.
struct BalanceRouter {
  static constexpr std::string_view name = "balance_router";
  View choices;
  View bias;
  View decision;
  double speed = 0;
  void check() const;
  Cost cost() const;
  DType dtype() const { return bias.dtype; }
  std::array<std::int64_t, 4> sizes() const { return {bias.numel()}; }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

}  // namespace llmtrain::kernels
