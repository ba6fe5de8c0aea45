#include "kernels/optimizer.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/rule_update.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/lists.hpp"
#include "kernels/cpu/fast/masters-inl.h"
#include "kernels/cpu/rows.hpp"

// One loop for all rules, which the compiler turns into vectors: a rule is plain arithmetic without
// branches, and this file is compiled without errno in roots.

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

/// With states where they lie, or in rows of floats.
template <class Rule>
void update_pass(const RuleTensors& of, const RuleInStep<Rule, float>& rule, const Segment& at,
                 const std::array<float*, kRoomForStatesOf<Rule>>& rows) {
  Masters masters(of.to, rule.update, at);
  float* HWY_RESTRICT parameter = masters.data();
  const float* HWY_RESTRICT gradient = at.of<float>(of.to.gradient);
  for (std::int64_t i = 0; i < at.count; ++i) {
    float states[kRoomForStatesOf<Rule>] = {};
    for (int k = 0; k < kStatesOf<Rule>; ++k) states[k] = rows[k][i];
    parameter[i] = rule.apply(parameter[i], gradient[i], states);
    for (int k = 0; k < kStatesOf<Rule>; ++k) rows[k][i] = states[k];
  }
  masters.write();
}

template <class Rule>
void update_pass(const RuleTensors& of, const RuleInStep<Rule, float>& rule, const Segment& at) {
  std::array<float*, kRoomForStatesOf<Rule>> rows{};
  if (!of.rounding.words.on) {
    for (int k = 0; k < kStatesOf<Rule>; ++k) rows[k] = at.of<float>(of.states[k]);
    return update_pass<Rule>(of, rule, at, rows);
  }
  HWY_ALIGN float wide[kRoomForStatesOf<Rule>][kPass];
  for (int k = 0; k < kStatesOf<Rule>; ++k) {
    rows[k] = wide[k];
    const bf16* state = at.of<bf16>(of.states[k]);
    for_vectors(at.count, [&](std::int64_t i, auto lanes)
                              HWY_ATTR { store(load(state + i, lanes), wide[k] + i, lanes); });
  }
  update_pass<Rule>(of, rule, at, rows);
  for (int k = 0; k < kStatesOf<Rule>; ++k) {
    std::uint16_t halves[kPass];
    draw_for_pass(of.rounding.of(k), rule.update, at, halves);
    bf16* state = at.of<bf16>(of.states[k]);
    for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store_by_chance(load(wide[k] + i, lanes), halves + i, state + i, lanes);
    });
  }
}

void rule_update(const RuleUpdate& op, const RuleTensors& of, std::int64_t begin,
                 std::int64_t end) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  std::visit(
      [&]<class Rule>(const Rule& rule) HWY_ATTR {
        const RuleInStep<Rule, float> in_step(rule, op.decay, of.lr_scale, of.weight_decay,
                                              decision);
        for_passes(begin, end,
                   [&](const Segment& at) HWY_ATTR { update_pass<Rule>(of, in_step, at); });
      },
      op.rule);
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(rule_update);

namespace {

void run_rule_update(const KernelCtx& ctx, const RuleUpdate& op, const View& workspace) {
  if (op.dtype() == DType::f64) return run_reference(ctx, op, workspace);
  if (!op.decision.as<UpdateDecision>()->applies()) return;
  for_chunks(ctx.threads, op.table, only_row<RuleUpdate>(op.table, op.tensors),
             [&](std::size_t row, std::int64_t, std::int64_t begin, std::int64_t end) {
               HWY_DYNAMIC_DISPATCH(rule_update)(op, op.tensors[row], begin, end);
             });
}

}  // namespace

void add_rule_update_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<RuleUpdate, run_rule_update>());
}

}  // namespace llmtrain::kernels::fast
#endif
