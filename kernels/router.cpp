#include "kernels/router.hpp"

#include <cmath>

#include "kernels/operands.hpp"

namespace llmtrain::kernels {

namespace {

void check_rule(const Operands& operands, const RouterRule& rule, std::int64_t experts) {
  const std::int64_t of_group = rule.groups > 0 ? experts / rule.groups : 0;
  operands.expects(rule.groups > 0 && experts % rule.groups == 0 && rule.kept_groups > 0 &&
                       rule.kept_groups <= rule.groups,
                   "groups of equally many experts, of which some are kept");
  operands.expects(rule.top_k > 0 && rule.top_k <= rule.kept_groups * of_group,
                   "0 < top_k <= experts of the kept groups");
  operands.expects(std::isfinite(rule.scale), "a finite scale");
}

}  // namespace

void RouteTokens::check() const {
  const Operands operands(name);
  const std::int64_t rows = logits.rows(), experts = logits.cols();
  operands.strided("logits", logits, rows, experts, {DType::f64, DType::f32});
  check_rule(operands, rule, experts);
  if (bias.defined()) operands.dense("bias", bias, experts, {logits.dtype});
  operands.dense("expert", expert, rows * rule.top_k, {DType::i32});
  operands.dense("weight", weight, rows * rule.top_k, {logits.dtype});
  if (score.defined()) operands.dense("score", score, rows * rule.top_k, {logits.dtype});
}

Cost RouteTokens::cost() const { return memory_cost({logits, bias}, {expert, weight, score}); }

void LimitChoices::check() const {
  const Operands operands(name);
  operands.dense("expert", expert, expert.numel(), {DType::i32});
  operands.dense("score", score, expert.numel(), {DType::f64, DType::f32});
  operands.dense("kept", kept, expert.numel(), {DType::i32});
  operands.distinct("kept", kept, "expert", expert);
  operands.expects(experts > 0 && capacity > 0, "experts with room for a choice");
  operands.expects(sequences > 0 && parts > 0 && expert.rows() % (sequences * parts) == 0,
                   "parts and sequences of equally many rows");
  operands.expects(position.defined() || parts == 1, "positions of rows that lie in parts");
  if (position.defined()) operands.dense("position", position, expert.rows(), {DType::i32});
}

Cost LimitChoices::cost() const { return memory_cost({expert, expert, score, position}, {kept}); }

std::uint64_t LimitChoices::workspace_bytes(int) const {
  // Choices by sequence and expert, and where each of these begins.
  return static_cast<std::uint64_t>(expert.numel() + sequences * experts + 1) *
         sizeof(std::int32_t);
}

void CountChoices::check() const {
  const Operands operands(name);
  operands.dense("expert", expert, expert.numel(), {DType::i32});
  operands.dense("choices", choices, choices.numel(), {DType::f64, DType::f32});
  operands.expects(choices.rows() > 0 && expert.rows() % choices.rows() == 0,
                   "sequences of equally many rows");
}

Cost CountChoices::cost() const { return memory_cost({expert}, {choices}); }

void RouteTokensBackward::check() const {
  const Operands operands(name);
  const std::int64_t rows = logits.rows(), experts = logits.cols();
  operands.strided("logits", logits, rows, experts, {DType::f64, DType::f32});
  check_rule(operands, rule, experts);
  operands.dense("expert", expert, rows * rule.top_k, {DType::i32});
  if (dweight.defined()) operands.dense("dweight", dweight, rows * rule.top_k, {logits.dtype});
  operands.expects(std::isfinite(losses.balance) && std::isfinite(losses.z),
                   "finite factors of losses");
  if (choices.defined()) {
    operands.dense("choices", choices, choices.rows() * experts, {logits.dtype});
    operands.expects(choices.rows() > 0 && rows % choices.rows() == 0 && losses.seq_len > 0,
                     "sequences of equally many rows");
  } else {
    operands.expects(losses.balance == 0 && !values.defined(), "choices for a balance loss");
  }
  operands.strided("dlogits", dlogits, rows, experts, kComputeDTypes);
  operands.distinct("dlogits", dlogits, "logits", logits);
  if (values.defined()) operands.dense("values", values, 2 * rows, {logits.dtype});
}

Cost RouteTokensBackward::cost() const {
  return memory_cost({logits, expert, dweight, choices}, {dlogits, values});
}

void BalanceRouter::check() const {
  const Operands operands(name);
  operands.dense("bias", bias, bias.numel(), {DType::f64, DType::f32});
  operands.dense("choices", choices, bias.numel(), {bias.dtype});
  operands.distinct("bias", bias, "choices", choices);
  check_decision(operands, decision);
  operands.expects(std::isfinite(speed) && speed >= 0, "a finite speed");
}

Cost BalanceRouter::cost() const { return memory_cost({choices, bias}, {bias}); }

}  // namespace llmtrain::kernels
