#include "kernels/optimizer.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/reference/masters.hpp"
#include "kernels/cpu/reference/squares.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/update_scalars.hpp"
#include "lib/base/tree_sum.hpp"

namespace llmtrain::kernels::reference {

namespace {

void squared_norm(const KernelCtx&, const SquaredNorm& op, const View&) {
  for (std::size_t i = 0; i < op.gradients.size(); ++i) {
    const View& g = op.gradients[i];
    with_master_type(
        g.dtype, [&]<class T>() { op.out.as<double>()[i] = sum_of_squares(g.as<T>(), g.numel()); });
  }
}

void clip_by_value(const KernelCtx&, const ClipByValue& op, const View&) {
  with_master_type(op.g.dtype, [&]<class T>() {
    const auto limit = static_cast<T>(op.limit_now());
    const bool scaled = op.decision.defined();
    T* g = op.g.as<T>();
    for (std::int64_t i = 0; i < op.g.numel(); ++i) {
      if (scaled && !std::isfinite(g[i])) continue;
      g[i] = std::min(std::max(g[i], -limit), limit);  // in this order a NaN stays one
    }
  });
}

void join_squared_norms(const KernelCtx&, const JoinSquaredNorms& op, const View&) {
  const auto* const first = op.first.as<std::int32_t>();
  for (std::int64_t i = 0; i < op.out.numel(); ++i) {
    op.out.as<double>()[i] =
        JoinSquaredNorms::join(op.runs.as<double>() + first[i],
                               op.levels.as<std::int32_t>() + first[i], first[i + 1] - first[i]);
  }
}

void decide_update(const KernelCtx&, const DecideUpdate& op, const View& workspace) {
  auto* const sums = workspace.as<double>();
  const auto count = static_cast<std::size_t>(op.squares.numel());
  std::copy_n(op.squares.as<double>(), count, sums);
  const auto* const losses = op.loss_sum.as<double>();
  op.decide(tree_sum({sums, count}), op.num_losses() > 0 ? losses[0] : 0,
            op.num_losses() > 1 ? losses[1] : 0, op.lr_now(), op.loss_limit_now(),
            *op.decision.as<UpdateDecision>());
}

template <class T>
void adam_update_one(const AdamTensors& of, const AdamScalars<T>& s) {
  const Masters<T> masters(of.to, s.update);
  const State<T> mean(of.m, of.rounding, 0, s.update), square(of.v, of.rounding, 1, s.update);
  for (std::int64_t i = 0; i < of.to.numel(); ++i) {
    T g = of.to.gradient.as<T>()[i] * s.grad_scale;
    T p = masters.get(i);
    if (s.in_gradient) g += s.weight_decay * p;
    p *= s.kept_before;
    const T m = s.beta1 * mean.get(i) + s.one_minus_beta1 * g;
    const T v = s.beta2 * square.get(i) + s.one_minus_beta2 * g * g;
    p -= s.step_size * m / (std::sqrt(v) / s.sqrt_bias_correction2 + s.eps);
    masters.put(i, p * s.kept_after);
    mean.put(i, m);
    square.put(i, v);
  }
}

void adam_update(const KernelCtx&, const AdamUpdate& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  for (const AdamTensors& of : op.tensors) {
    with_master_type(of.to, [&]<class T>() {
      adam_update_one<T>(of, {op, of.lr_scale, of.weight_decay, decision});
    });
  }
}

template <class Rule, class T>
void rule_update_one(const RuleTensors& of, const RuleInStep<Rule, T>& rule) {
  const Masters<T> masters(of.to, rule.update);
  const T* const gradient = of.to.gradient.as<T>();
  const auto state = [&](int k) {
    return State<T>(of.states[static_cast<std::size_t>(k)], of.rounding, k, rule.update);
  };
  for (std::int64_t i = 0; i < of.to.numel(); ++i) {
    T states[kRoomForStatesOf<Rule>];
    for (int k = 0; k < kStatesOf<Rule>; ++k) states[k] = state(k).get(i);
    masters.put(i, rule.apply(masters.get(i), gradient[i], states));
    for (int k = 0; k < kStatesOf<Rule>; ++k) state(k).put(i, states[k]);
  }
}

void rule_update(const KernelCtx&, const RuleUpdate& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  for (const RuleTensors& of : op.tensors) {
    with_master_type(of.to, [&]<class T>() {
      std::visit(
          [&]<class Rule>(const Rule& rule) {
            rule_update_one<Rule, T>(of, {rule, op.decay, of.lr_scale, of.weight_decay, decision});
          },
          op.rule);
    });
  }
}

void step_update(const KernelCtx&, const StepUpdate& op, const View&) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (!decision.applies()) return;
  with_master_type(op.to, [&]<class T>() {
    const StepUpdateScalars<T> s(op, decision);
    const Masters<T> masters(op.to, s.update);
    with_type(op.to.gradient.dtype, [&]<class D>() {
      for (std::int64_t i = 0; i < op.to.numel(); ++i) {
        const auto direction = static_cast<T>(widen(op.to.gradient.as<D>()[i]));
        masters.put(i, s.apply(masters.get(i), direction));
      }
    });
  });
}

}  // namespace

void add_optimizer_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<SquaredNorm, squared_norm>());
  rows.push_back(row_of<JoinSquaredNorms, join_squared_norms>());
  rows.push_back(row_of<ClipByValue, clip_by_value>());
  rows.push_back(row_of<DecideUpdate, decide_update>());
  rows.push_back(row_of<AdamUpdate, adam_update>());
  rows.push_back(row_of<RuleUpdate, rule_update>());
  rows.push_back(row_of<StepUpdate, step_update>());
}

}  // namespace llmtrain::kernels::reference
