// The element-wise rules: formulas by hand, what is awkward about them, and the fast kernel's bits.
#include <cfloat>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/tensor/split_master.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/rule_case.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::every_rule;
using test::kEveryDecay;
using test::rule_decision;
using test::run_rule;
using trial::kSizes;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

using Case = test::RuleCase<Machine>;

std::vector<Values> contents(const Case& c) {
  std::vector<Values> all;
  for (const Tensor& tensor : c.all) all.push_back(values_of(tensor));
  return all;
}

/// What two updates leave, the first of all and a later one.
std::vector<Values> updated(const KernelTable& table, int threads, const UpdateRule& rule,
                            WeightDecay decay, std::int64_t n) {
  Machine machine(table, DType::f32, DType::f32, threads);
  const Case c(machine, rule, n);
  for (const int t : {1, 5}) {
    const Tensor now = rule_decision(machine, 0.7, t);
    run_rule(machine, c.tensors, {.decision = now, .rule = rule, .decay = decay});
  }
  return contents(c);
}

/// One fp64 element through steps of one gradient each, at lr 1 unless `lr` says otherwise.
class Element {
 public:
  explicit Element(const UpdateRule& rule, double p = 0, double lr = 1)
      : machine_(cpu_reference_table(), DType::f64, DType::f64, 1), rule_(rule), lr_(lr) {
    p_ = machine_.of({p}, {1}, DType::f64);
    for (Tensor& state : states_) state = machine_.of({0}, {1}, DType::f64);
  }
  /// The new value.
  double step(double g, double weight_decay = 0, WeightDecay decay = WeightDecay::in_gradient) {
    const Tensor gradient = machine_.of({g}, {1}, DType::f64);
    const Tensor now = rule_decision(machine_, 1, ++t_);
    RuleTensors tensors{{p_, gradient}, {}, 2 * lr_, weight_decay};  // the decision has lr 0.5
    for (std::size_t i = 0; i < states_of(rule_).size(); ++i) tensors.states[i] = states_[i];
    run_rule(machine_, tensors, {.decision = now, .rule = rule_, .decay = decay});
    return values_of(p_)[0];
  }
  double state(std::size_t i) const { return values_of(states_[i])[0]; }
  void set_state(std::size_t i, double value) { trial::set_values(states_[i], {value}); }

 private:
  Machine machine_;
  UpdateRule rule_;
  double lr_;
  int t_ = 0;
  Tensor p_, states_[kMaxRuleStates];
};

}  // namespace

TEST_CASE("every alternative of the update rules is tried") {
  std::vector<bool> tried(std::variant_size_v<UpdateRule>);
  for (const UpdateRule& rule : every_rule()) tried[rule.index()] = true;
  CHECK(std::find(tried.begin(), tried.end(), false) == tried.end());
}

TEST_CASE("fast updates by rules have the reference's bits with every number of threads") {
  for (const UpdateRule& rule : every_rule()) {
    for (const WeightDecay decay : kEveryDecay) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(rule.index());
        CAPTURE(n);
        const auto expected = updated(cpu_reference_table(), 1, rule, decay, n);
        for (const int threads : {1, 2, 3}) {
          CHECK(updated(cpu_table(), threads, rule, decay, n) == expected);
        }
      }
    }
  }
}

TEST_CASE("rules update halves, and bf16 without a master, as the reference does") {
  constexpr std::int64_t kCount = 1025;
  for (const UpdateRule& rule : every_rule()) {
    CAPTURE(rule.index());
    const auto run = [&](const KernelTable& table, bool halves) {
      Machine machine(table, DType::f32, DType::f32, 2);
      Case c(machine, rule, kCount);
      const Tensor low = machine.integers(std::vector<std::uint16_t>(kCount));
      const Tensor high = machine.normals("p", {kCount}, DType::bf16, DType::bf16);
      c.tensors.to.parameter = {};
      c.tensors.to.compute_copy = high;
      if (halves) {
        c.tensors.to.remainder = low;
      } else {
        c.tensors.to.rounding = {
            .on = true, .key = philox_key(3, "stochastic rounding", "w"), .columns = kCount};
      }
      const Tensor now = rule_decision(machine, 0.7, 3);
      run_rule(machine, c.tensors, {.decision = now, .rule = rule});
      Values all = values_of(high);
      for (std::int64_t i = 0; halves && i < kCount; ++i) {
        all.push_back(low.view().as<std::uint16_t>()[i]);
      }
      for (const View& state : c.tensors.states) {
        if (!state.defined()) continue;
        const Values values = values_of(state);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    };
    for (const bool halves : {false, true}) {
      CHECK(run(cpu_table(), halves) == run(cpu_reference_table(), halves));
    }
    CHECK(run(cpu_table(), false) != run(cpu_table(), true));
  }
}

TEST_CASE("a list of parameters has the bits of its parameters one by one") {
  const std::int64_t sizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 1, 0};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const UpdateRule& rule : every_rule()) {
      CAPTURE(rule.index());
      Machine machine(*table, DType::f32, DType::f32, 2);
      const Tensor now = rule_decision(machine, 0.3, 4);
      std::vector<Case> listed, alone;
      std::vector<RuleTensors> tensors;
      for (std::size_t i = 0; i < std::size(sizes); ++i) {
        for (std::vector<Case>* to : {&listed, &alone}) {
          Case& c = to->emplace_back(machine, rule, sizes[i]);
          c.tensors.lr_scale = 0.1 * static_cast<double>(i + 1);
          c.tensors.weight_decay = i % 2 == 0 ? 0.1 : 0;
        }
        tensors.push_back(listed.back().tensors);
      }
      const std::span<const RuleTensors> all(tensors);
      const Tensor rows = make_table<RuleUpdate>(*machine.ctx().device, all, "table");
      machine.run(RuleUpdate{.tensors = all, .table = rows, .decision = now, .rule = rule});
      for (std::size_t i = 0; i < alone.size(); ++i) {
        run_rule(machine, alone[i].tensors, {.decision = now, .rule = rule});
        CHECK(contents(alone[i]) == contents(listed[i]));
      }
    }
  }
}

TEST_CASE("rules touch nothing where the decision does not apply") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      for (const UpdateRule& rule : every_rule()) {
        Machine machine(*table, dtype, dtype, 2);
        const Case c(machine, rule, 40);
        const auto before = contents(c);
        const Tensor no = rule_decision(machine, 1, 1, false);
        run_rule(machine, c.tensors, {.decision = no, .rule = rule});
        CHECK(contents(c) == before);
      }
    }
  }
}

TEST_CASE("decoupled decay before the step shrinks what was, after it what came out") {
  Element before(rules::Lion{}, 2, 0.25), after(rules::Lion{}, 2, 0.25), coupled(rules::Sgd{}, 2);
  CHECK(before.step(3, 2, WeightDecay::before_step) == 2 * 0.5 - 0.25);
  CHECK(after.step(3, 2, WeightDecay::after_step) == (2 - 0.25) * 0.5);
  CHECK(coupled.step(3, 2) == 2 - (3 + 2 * 2));
}

TEST_CASE("Lion's step is lr whatever the gradient's size, and none where its sign has none") {
  for (const double g : {1e-300, 1.0, 1e30, DBL_TRUE_MIN * 64}) {
    Element lion(rules::Lion{}, 1, 0.125);
    CHECK(lion.step(g) == 0.875);
    CHECK(Element(rules::Lion{}, 1, 0.125).step(-g) == 1.125);
  }
  Element still(rules::Lion{}, 1, 0.125);
  CHECK(still.step(0) == 1);
  CHECK(still.step(-0.0) == 1);
  // The step's sign is of the mean before this step's second decay.
  Element turning(rules::Lion{.beta1 = 0.5, .beta2 = 0.25}, 0, 1);
  CHECK(turning.step(4) == -1);
  CHECK(turning.state(0) == 3);
  CHECK(turning.step(-3) == -1);  // 0.5 * 3 - 0.5 * 3
  CHECK(turning.step(-3) == 0);
}

TEST_CASE("Adagrad's first step is lr, and its decay counts updates from zero") {
  Element adagrad(rules::Adagrad{.lr_decay = 0.5, .eps = 1e-300}, 0);
  CHECK(adagrad.step(-3) == 1);
  CHECK(adagrad.step(-4) == test::relative(1 + 4.0 / 5 / 1.5));
  CHECK(adagrad.step(-12) == test::relative(1 + 4.0 / 5 / 1.5 + 12.0 / 13 / 2));
  CHECK(adagrad.state(0) == 169);
  Element at_rest(rules::Adagrad{}, 7);
  CHECK(at_rest.step(0) == 7);  // nothing over eps
}

TEST_CASE("a variance that rounds below zero counts as none, and no NaN comes of it") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    constexpr std::int64_t kCount = 300;
    Values gradients(kCount);
    for (std::size_t i = 0; i < kCount; ++i) gradients[i] = 0.1 + 0.01 * static_cast<double>(i);
    const Tensor p = machine.of(Values(kCount, 0), {kCount}, DType::f32);
    const Tensor g = machine.of(gradients, {kCount}, DType::f32);
    const Tensor v = machine.of(Values(kCount, 0), {kCount}, DType::f32);
    const Tensor m = machine.of(Values(kCount, 0), {kCount}, DType::f32);
    int negative = 0;
    for (int t = 1; t <= 60; ++t) {  // equal gradients: the variance goes to zero
      const Tensor now = rule_decision(machine, 1, t);
      run_rule(machine, {{p, g}, {v, m}, 1e-6},
               {.decision = now, .rule = rules::Rmsprop<true, false>{.alpha = 0.5}});
      for (std::int64_t i = 0; i < kCount; ++i) {
        const float mean = m.view().as<float>()[i];
        negative += v.view().as<float>()[i] - mean * mean < 0;
      }
    }
    CHECK(negative > 0);
    for (const double x : values_of(p)) CHECK(std::isfinite(x));
  }
}

TEST_CASE("RMSprop's momentum keeps steps without lr, so that a new lr counts at once") {
  Element steady(rules::Rmsprop<false, true>{.alpha = 0, .eps = 1e-300, .momentum = 0.5}, 0, 2);
  CHECK(steady.step(-8) == 2);  // u = -1
  CHECK(steady.state(1) == -1);
  CHECK(steady.step(-8) == 2 + 2 * 1.5);
  Element centered(rules::Rmsprop<true, true>{.alpha = 0.5, .eps = 1e-300, .momentum = 0.5}, 0, 1);
  CHECK(centered.step(2) == -2);  // v 2, m 1: a variance of 1
  CHECK(centered.state(0) == 2);
  CHECK(centered.state(1) == 1);
  CHECK(centered.state(2) == 2);
}

TEST_CASE("AMSGrad takes the largest second moment before its correction, and keeps it") {
  Element amsgrad(rules::Amsgrad{{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-300}}, 0);
  CHECK(amsgrad.step(10) == test::relative(-1.0));
  CHECK(amsgrad.state(2) == test::relative(10.0));
  const double second = amsgrad.step(0);
  CHECK(amsgrad.state(1) == test::relative(9.0));
  CHECK(amsgrad.state(2) == test::relative(10.0));  // Adam would divide by the root of 9
  CHECK(second == test::relative(-1.0 - 1.6 / 0.36 / std::sqrt(10.0 / 0.19)));
}

TEST_CASE("momentum begins as the first gradient, whatever its buffer holds") {
  Element heavy(rules::Momentum{.momentum = 0.5, .dampening = 0.75}, 0);
  heavy.set_state(0, NAN);
  CHECK(heavy.step(8) == -8);
  CHECK(heavy.step(8) == -8 - (4 + 2));
  Element ahead(rules::Momentum{.momentum = 0.5, .nesterov = true}, 0);
  CHECK(ahead.step(8) == -12);
  CHECK(ahead.step(8) == -12 - (8 + 0.5 * 12));
}

TEST_CASE("a rule refuses more or fewer states than it has, and parameters of two kinds") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor p = machine.operand("p", {6}), g = machine.operand("g", {6});
  const Tensor narrow = machine.empty({6}, DType::bf16), other = machine.operand("o", {5});
  const Tensor now = rule_decision(machine, 1, 1);
  RuleTensors tensors[] = {{{p, g, narrow}, {g}}, {{p, g, narrow}, {g}}};
  const std::span<const RuleTensors> all(tensors);
  const Tensor table = make_table<RuleUpdate>(*machine.ctx().device, all, "table");
  const RuleUpdate lion{.tensors = all, .table = table, .decision = now, .rule = rules::Lion{}};
  lion.check();
  const auto refused = [&](const auto& change) {
    RuleUpdate update = lion;
    const RuleTensors before = tensors[1];
    change(update, tensors[1]);
    CHECK_THROWS_AS(update.check(), InternalError);
    tensors[1] = before;
  };
  refused([&](RuleUpdate& k, RuleTensors&) { k.tensors = {}; });
  refused([&](RuleUpdate& k, RuleTensors&) { k.table = {}; });
  refused([&](RuleUpdate& k, RuleTensors&) { k.tensors = k.tensors.first(1); });
  refused([&](RuleUpdate& k, RuleTensors&) { k.decision = p; });
  refused([&](RuleUpdate& k, RuleTensors&) { k.rule = rules::Sgd{}; });
  refused([&](RuleUpdate& k, RuleTensors&) { k.rule = rules::Amsgrad{}; });
  refused([&](RuleUpdate&, RuleTensors& t) { t.states[0] = narrow; });
  refused([&](RuleUpdate&, RuleTensors& t) { t.states[0] = {}; });
  refused([&](RuleUpdate&, RuleTensors& t) { t.states[1] = g; });
  refused([&](RuleUpdate&, RuleTensors& t) { t.to.gradient = other; });
  refused([&](RuleUpdate&, RuleTensors& t) { t.to.compute_copy = {}; });
}

}  // namespace llmtrain::kernels
