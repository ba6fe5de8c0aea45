#include "kernels/optimizer.hpp"

#include "kernels/operands.hpp"
#include "kernels/update_operands.hpp"

namespace llmtrain::kernels {

namespace {

/// The dtype of an update's master, whose form is checked.
DType check_master(const Operands& operands, const UpdateOperands& to) {
  const std::int64_t n = to.numel();
  if (!to.parameter.defined() && !to.remainder.defined()) {
    operands.dense("compute_copy", to.compute_copy, n, {DType::bf16});
    return DType::f32;
  }
  operands.expects(!to.rounding.on, "stochastic rounding without a master only");
  if (to.remainder.defined()) {
    operands.absent("parameter", to.parameter);
    operands.dense("compute_copy", to.compute_copy, n, {DType::bf16});
    operands.dense("remainder", to.remainder, n, {DType::u16});
    operands.distinct("remainder", to.remainder, "compute_copy", to.compute_copy);
    return DType::f32;
  }
  operands.dense("parameter", to.parameter, n, {DType::f64, DType::f32});
  if (to.compute_copy.defined()) {
    operands.dense("compute_copy", to.compute_copy, n, {DType::f32, DType::bf16, DType::f16});
    operands.distinct("compute_copy", to.compute_copy, "parameter", to.parameter);
  }
  return to.parameter.dtype;
}

/// A state of an update, which is rounded where it is bf16 and nowhere else.
void check_state(const Operands& operands, std::string_view name, const View& state,
                 const UpdateOperands& to, const StateRounding& rounding) {
  operands.expects(!rounding.words.on || to.master_dtype() == DType::f32,
                   "states of bf16 beside masters of FP32");
  operands.dense(name, state, to.numel(), {rounding.words.on ? DType::bf16 : to.gradient.dtype});
}

}  // namespace

bool alike(const UpdateOperands& a, const UpdateOperands& b) {
  return a.gradient.dtype == b.gradient.dtype && a.parameter.defined() == b.parameter.defined() &&
         a.remainder.defined() == b.remainder.defined() &&
         a.compute_copy.defined() == b.compute_copy.defined() &&
         a.compute_copy.dtype == b.compute_copy.dtype;
}

void check_update(const Operands& operands, const UpdateOperands& to) {
  const DType master = check_master(operands, to);
  operands.dense("gradient", to.gradient, to.numel(), {master});
}

Cost update_cost(const UpdateOperands& to) {
  const View copy_as_master = to.parameter.defined() ? View{} : to.compute_copy;
  return memory_cost({to.parameter, to.remainder, copy_as_master, to.gradient},
                     {to.parameter, to.remainder, to.compute_copy});
}

std::vector<SquaredNorm::Row> SquaredNorm::rows(std::span<const View> gradients) {
  return table_rows<Row>(gradients, [](const View& g) {
    return Row{.place = {.numel = g.numel()}, .gradient = g.data};
  });
}

void SquaredNorm::check() const {
  const Operands operands(name);
  check_table<Row>(operands, table, gradients.size());
  operands.expects(dtype() == DType::f64 || dtype() == DType::f32, "gradients in FP32 or FP64");
  for (const View& g : gradients) {
    if (g.numel() > 0) operands.dense("gradient", g, g.numel(), {dtype()});
  }
  operands.dense("out", out, std::ssize(gradients), {DType::f64});
}

Cost SquaredNorm::cost() const {
  Cost cost = memory_cost({}, {out});
  for (const View& g : gradients) cost += memory_cost({g}, {});
  return cost;
}

std::array<std::int64_t, 4> SquaredNorm::sizes() const {
  std::int64_t numel = 0;
  for (const View& g : gradients) numel += g.numel();
  return {numel};
}

std::uint64_t SquaredNorm::workspace_bytes(int) const {
  std::int64_t chunks = 0;
  for (const View& g : gradients) chunks += list_chunks(g.numel());
  return static_cast<std::uint64_t>(chunks) * sizeof(double);
}

void JoinSquaredNorms::check() const {
  const Operands operands(name);
  operands.dense("runs", runs, runs.numel(), {DType::f64});
  operands.dense("levels", levels, runs.numel(), {DType::i32});
  operands.dense("first", first, out.numel() + 1, {DType::i32});
  operands.dense("out", out, out.numel(), {DType::f64});
}

Cost JoinSquaredNorms::cost() const { return memory_cost({runs, levels, first}, {out}); }

void ClipByValue::check() const {
  const Operands operands(name);
  operands.dense("g", g, g.numel(), {DType::f64, DType::f32});
  operands.expects(limit >= 0, "limit >= 0");
  if (decision.defined()) check_decision(operands, decision);
}

Cost ClipByValue::cost() const { return memory_cost({g}, {g}); }

void DecideUpdate::check() const {
  const Operands operands(name);
  operands.dense("squares", squares, squares.numel(), {DType::f64});
  if (loss_sum.defined()) {
    operands.expects(num_losses() == 1 || num_losses() == 2, "a loss, or a loss and a z-loss");
    operands.dense("loss_sum", loss_sum, num_losses(), {DType::f64});
  }
  check_decision(operands, decision);
  check_step_scalars(operands, scalars);
  operands.expects(max_norm > 0, "max_norm > 0");
  operands.expects(loss_scale.growth_interval >= 0, "growth_interval >= 0 (0: never)");
  operands.expects(loss_scale.growth_factor > 1, "growth_factor > 1");
  operands.expects(loss_scale.backoff_factor > 0 && loss_scale.backoff_factor < 1,
                   "backoff_factor between 0 and 1");
  operands.expects(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas in [0, 1)");
}

Cost DecideUpdate::cost() const { return memory_cost({squares, loss_sum, decision}, {decision}); }

std::vector<AdamUpdate::Row> AdamUpdate::rows(std::span<const AdamTensors> tensors) {
  return table_rows<Row>(tensors, [](const AdamTensors& t) {
    return Row{.place = {.numel = t.to.numel()},
               .parameter = t.to.parameter.data,
               .gradient = t.to.gradient.data,
               .compute_copy = t.to.compute_copy.data,
               .remainder = t.to.remainder.data,
               .m = t.m.data,
               .v = t.v.data,
               .lr_scale = t.lr_scale,
               .weight_decay = t.weight_decay,
               .rounding = t.to.rounding,
               .state_rounding = t.rounding};
  });
}

void AdamUpdate::check() const {
  const Operands operands(name);
  check_table<Row>(operands, table, tensors.size());
  check_decision(operands, decision);
  for (const AdamTensors& t : tensors) {
    check_update(operands, t.to);
    check_state(operands, "m", t.m, t.to, t.rounding);
    check_state(operands, "v", t.v, t.to, t.rounding);
    operands.expects(alike(t.to, tensors.front().to) && t.m.dtype == tensors.front().m.dtype,
                     "parameters of one kind");
  }
  operands.expects(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas in [0, 1)");
}

Cost AdamUpdate::cost() const {
  Cost cost;
  for (const AdamTensors& t : tensors) {
    cost += update_cost(t.to);
    cost += memory_cost({t.m, t.v}, {t.m, t.v});
  }
  return cost;
}

std::int64_t AdamUpdate::numel() const { return numel_of(tensors); }

std::vector<RuleUpdate::Row> RuleUpdate::rows(std::span<const RuleTensors> tensors) {
  return table_rows<Row>(tensors, [](const RuleTensors& t) {
    Row row{.place = {.numel = t.to.numel()},
            .parameter = t.to.parameter.data,
            .gradient = t.to.gradient.data,
            .compute_copy = t.to.compute_copy.data,
            .remainder = t.to.remainder.data,
            .states = {},
            .lr_scale = t.lr_scale,
            .weight_decay = t.weight_decay,
            .rounding = t.to.rounding,
            .state_rounding = t.rounding};
    for (int i = 0; i < kMaxRuleStates; ++i) row.states[i] = t.states[i].data;
    return row;
  });
}

void RuleUpdate::check() const {
  const Operands operands(name);
  check_table<Row>(operands, table, tensors.size());
  check_decision(operands, decision);
  const std::span<const std::string_view> names = states_of(rule);
  for (const RuleTensors& t : tensors) {
    check_update(operands, t.to);
    const bool same_states = t.rounding.words.on == tensors.front().rounding.words.on;
    operands.expects(alike(t.to, tensors.front().to) && same_states, "parameters of one kind");
    for (std::size_t i = 0; i < t.states.size(); ++i) {
      if (i < names.size()) {
        check_state(operands, names[i], t.states[i], t.to, t.rounding);
      } else {
        operands.absent("a state that the rule does not have", t.states[i]);
      }
    }
  }
}

Cost RuleUpdate::cost() const {
  Cost cost;
  for (const RuleTensors& t : tensors) {
    cost += update_cost(t.to);
    for (const View& state : t.states) cost += memory_cost({state}, {state});
  }
  return cost;
}

std::int64_t RuleUpdate::numel() const { return numel_of(tensors); }

void ScaleUpdate::check() const {
  const Operands operands(name);
  as_scale_cast({}).check();
  check_decision(operands, decision);
}

Cost ScaleUpdate::cost() const { return as_scale_cast({}).cost(); }

void StepUpdate::check() const {
  const Operands operands(name);
  check_decision(operands, decision);
  if (check_master(operands, to) == DType::f64) {
    operands.dense("gradient", to.gradient, to.numel(), {DType::f64});
  } else {
    operands.dense("gradient", to.gradient, to.numel(), {DType::f32, DType::bf16, DType::f16});
  }
}

Cost StepUpdate::cost() const { return update_cost(to); }

}  // namespace llmtrain::kernels
