// Updates whose states are bf16: what is read widened, what is written rounded, and by which words.
#include <bit>
#include <cfloat>
#include <cmath>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/bf16_states_case.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::every_rule_with_states;
using test::every_state_rounding;
using test::kEveryMaster;
using test::MasterKind;
using test::rule_decision;
using test::rule_with_states_of_adam;
using test::run_adam;
using test::run_rule;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

using Case = test::Bf16StatesCase<Machine>;

constexpr std::int64_t kSizes[] = {0, 1, 15, 1025, 40003};

std::vector<Values> contents(const Case& c) {
  std::vector<Values> all;
  for (const Tensor& tensor : c.all) all.push_back(values_of(tensor));
  return all;
}

AdamUpdate adam(const View& decision) {
  return {.decision = decision, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6};
}

struct Problem {
  UpdateRule rule;
  bool by_adam = false;  // kernels::AdamUpdate in the place of RuleUpdate
};

std::vector<Problem> every_problem() {
  std::vector<Problem> all{{rule_with_states_of_adam(), true}};
  for (const UpdateRule& rule : every_rule_with_states()) all.push_back({rule});
  return all;
}

void update(Machine& machine, const Case& c, const Problem& problem, int t) {
  const Tensor now = rule_decision(machine, 0.7, t);
  if (problem.by_adam) return run_adam(machine, c.for_adam(), adam(now));
  run_rule(machine, c.tensors, {.decision = now, .rule = problem.rule});
}

/// What two updates leave, the first of all and a later one.
std::vector<Values> updated(const KernelTable& table, int threads, const Problem& problem,
                            std::int64_t n, MasterKind kind, const StateRounding& rounding) {
  Machine machine(table, DType::f32, DType::f32, threads);
  const Case c(machine, problem.rule, n, kind, rounding);
  for (const int t : {1, 5}) update(machine, c, problem, t);
  return contents(c);
}

/// One momentum of values `buffer` without any decay of theirs: what an update writes is b + g.
std::vector<bf16> summed(const KernelTable& table, const std::vector<float>& buffer,
                         const std::vector<float>& g, const StateRounding& rounding, int t = 5) {
  Machine machine(table, DType::f32, DType::f32, 2);
  const Shape shape{std::ssize(g)};
  const auto wide = [&](const std::vector<float>& x) {
    const Tensor tensor = machine.empty(shape, DType::f32);
    std::copy(x.begin(), x.end(), tensor.view().as<float>());
    return tensor;
  };
  const Tensor p = wide(std::vector<float>(g.size())), gradient = wide(g);
  const Tensor state = machine.empty(shape, DType::bf16);
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(buffer[static_cast<std::size_t>(i)]);
    state.view().as<bf16>()[i] = {static_cast<std::uint16_t>(bits >> 16)};
  }
  const Tensor now = rule_decision(machine, 1, t);
  run_rule(machine, {.to = {p, gradient}, .states = {state}, .rounding = rounding},
           {.decision = now, .rule = rules::Momentum{.momentum = 1}});
  return {state.view().as<bf16>(), state.view().as<bf16>() + shape.numel()};
}

}  // namespace

TEST_CASE("updates with bf16 states have the reference's bits in every form of the master") {
  for (const Problem& problem : every_problem()) {
    for (const MasterKind kind : kEveryMaster) {
      for (const std::int64_t n : kSizes) {
        for (const StateRounding& rounding : every_state_rounding(n)) {
          CAPTURE(problem.rule.index());
          CAPTURE(problem.by_adam);
          CAPTURE(static_cast<int>(kind));
          CAPTURE(n);
          CAPTURE(rounding.words.first);
          const auto expected = updated(cpu_reference_table(), 1, problem, n, kind, rounding);
          CHECK(updated(cpu_table(), 2, problem, n, kind, rounding) == expected);
        }
      }
    }
  }
}

TEST_CASE("updates with bf16 states have these bits with all threads and instruction sets") {
  constexpr std::int64_t kCount = 70001;
  for (const Problem& problem : every_problem()) {
    CAPTURE(problem.rule.index());
    CAPTURE(problem.by_adam);
    const StateRounding rounding = every_state_rounding(kCount).back();
    const auto run = [&](const KernelTable& table, int threads) {
      return updated(table, threads, problem, kCount, MasterKind::with_bf16_copy, rounding);
    };
    const auto expected = run(cpu_reference_table(), 1);
    for (const int threads : {1, 3, 5, 7}) CHECK(run(cpu_table(), threads) == expected);
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      CAPTURE(hwy::TargetName(target));
      const trial::InstructionSet only(target);
      CHECK(run(cpu_table(), 2) == expected);
    }
  }
}

TEST_CASE("a bf16 state is what FP32 would hold, rounded by its element's half, key and update") {
  constexpr std::int64_t kCount = 77;
  constexpr int kUpdate = 9;
  for (const Problem& problem : every_problem()) {
    CAPTURE(problem.rule.index());
    Machine machine(cpu_table(), DType::f32, DType::f32, 1);
    StateRounding rounding = every_state_rounding(kCount).front();
    rounding.words = {.on = true, .first = 40, .columns = 11, .stride = 101};
    const Case narrow(machine, problem.rule, kCount, MasterKind::whole, rounding);
    Case wide(machine, problem.rule, kCount, MasterKind::whole, {});
    std::vector<Tensor> states;
    for (std::size_t k = 0; k < states_of(problem.rule).size(); ++k) {
      const View& from = narrow.tensors.states[k];
      states.push_back(machine.of(values_of(from), {1, kCount}, DType::f32));
      wide.tensors.states[k] = states.back();
    }
    update(machine, narrow, problem, kUpdate);
    update(machine, wide, problem, kUpdate);
    // The parameter moves by what the states are before they are rounded.
    CHECK(values_of(narrow.tensors.to.parameter) == values_of(wide.tensors.to.parameter));
    for (std::size_t k = 0; k < states.size(); ++k) {
      for (std::size_t i = 0; i < kCount; ++i) {
        const std::uint64_t index = 40 + i / 11 * 101 + i % 11;
        const std::uint32_t word = philox_word(rounding.keys[k], kUpdate, index / 4);
        const std::uint32_t pair = index % 4 < 2 ? word & 0xffffu : word >> 16;
        const std::uint32_t swapped = pair << 8 | pair >> 8;
        const auto half = static_cast<std::uint16_t>(index % 2 == 0 ? swapped : pair);
        const float exact = states[k].view().as<float>()[i];
        CHECK(narrow.tensors.states[k].as<bf16>()[i] == round_by_half(exact, half));
      }
    }
  }
}

TEST_CASE("a list of parameters with bf16 states has the bits of its parameters one by one") {
  const std::int64_t sizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 1, 0};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const Problem& problem : every_problem()) {
      CAPTURE(problem.rule.index());
      Machine machine(*table, DType::f32, DType::f32, 2);
      std::vector<Case> listed, alone;
      std::vector<RuleTensors> tensors;
      std::vector<AdamTensors> moments;
      for (const std::int64_t n : sizes) {
        StateRounding rounding = every_state_rounding(n)[listed.size() % 4];
        rounding.keys[0].k0 += static_cast<std::uint32_t>(listed.size());
        for (std::vector<Case>* to : {&listed, &alone}) {
          to->emplace_back(machine, problem.rule, n, MasterKind::none, rounding);
        }
        tensors.push_back(listed.back().tensors);
        if (problem.by_adam) moments.push_back(listed.back().for_adam());
      }
      const Tensor now = rule_decision(machine, 0.7, 4);
      Device& device = *machine.ctx().device;
      if (problem.by_adam) {
        AdamUpdate all = adam(now);
        all.tensors = moments;
        const Tensor rows = make_table<AdamUpdate>(device, all.tensors, "table");
        all.table = rows;
        machine.run(all);
      } else {
        const std::span<const RuleTensors> all(tensors);
        const Tensor rows = make_table<RuleUpdate>(device, all, "table");
        machine.run(
            RuleUpdate{.tensors = all, .table = rows, .decision = now, .rule = problem.rule});
      }
      for (std::size_t i = 0; i < alone.size(); ++i) {
        update(machine, alone[i], problem, 4);
        CHECK(contents(alone[i]) == contents(listed[i]));
      }
    }
  }
}

TEST_CASE("a part of a parameter has the states of the whole") {
  constexpr std::size_t kCount = 5000, kFirst = 1235;
  std::vector<float> buffer(kCount, 1.0f), g(kCount);
  for (std::size_t i = 0; i < kCount; ++i) g[i] = 1e-3f * static_cast<float>(i % 7);
  StateRounding rounding = every_state_rounding(kCount).front();
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const auto whole = summed(*table, buffer, g, rounding);
    StateRounding later = rounding, behind = rounding;
    later.words.first = kFirst;    // a box of its own
    behind.words.before = kFirst;  // a slice of a box
    const std::vector<float> some(g.begin() + kFirst, g.end()), ones(some.size(), 1.0f);
    for (const StateRounding& of_part : {later, behind}) {
      const auto part = summed(*table, ones, some, of_part);
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + kFirst));
    }
    // Other updates, elements and keys have other halves.
    CHECK(summed(*table, buffer, g, rounding, 6) != whole);
    CHECK(summed(*table, ones, some, rounding) !=
          std::vector<bf16>(whole.begin() + kFirst, whole.end()));
    StateRounding other = rounding;
    other.keys[0] = rounding.keys[1];
    CHECK(summed(*table, buffer, g, other) != whole);
  }
}

TEST_CASE("the mean of what is written is the number itself, and neighbours do not agree on it") {
  constexpr std::size_t kCount = 1 << 18;
  const StateRounding rounding = every_state_rounding(kCount).front();
  for (const double part : {1.0 / 64, 5.0 / 16, 0.5, 0.99}) {
    CAPTURE(part);
    // Of the distance of bf16 numbers above 1.
    const std::vector<float> buffer(kCount, 1.0f), g(kCount, static_cast<float>(part * 0x1p-7));
    const auto found = summed(cpu_table(), buffer, g, rounding);
    double ups = 0, both = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      const bool up = found[i].bits == 0x3f81u;
      REQUIRE((up || found[i].bits == 0x3f80u));
      ups += up;
      both += i > 0 && up && found[i - 1].bits == 0x3f81u;
    }
    const double error = std::sqrt(part * (1 - part) / kCount);
    CHECK(std::abs(ups / kCount - part) < 5 * error);
    const double pairs = part * part;
    CHECK(std::abs(both / kCount - pairs) < 8 * std::sqrt(pairs / kCount));
  }
}

TEST_CASE("the states of a parameter are rounded by halves that have nothing to do with another") {
  constexpr std::int64_t kCount = 1 << 16;
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const StateRounding rounding = every_state_rounding(kCount).front();
  // Moments in the middle between two bf16 numbers.
  const Tensor p = machine.of(Values(kCount, 0.0), {kCount}, DType::f32);
  const Tensor g = machine.of(Values(kCount, 1.0), {kCount}, DType::f32);
  const Tensor m = machine.of(Values(kCount, 1.0), {kCount}, DType::bf16);
  const Tensor v = machine.of(Values(kCount, 1.0), {kCount}, DType::bf16);
  const Tensor grown = machine.of(Values(kCount, 1 + 0x1p-7), {kCount}, DType::f32);
  const Tensor now = rule_decision(machine, 1, 3);
  run_adam(machine, {.to = {p, grown}, .m = m, .v = v, .rounding = rounding},
           {.decision = now, .beta1 = 0.5, .beta2 = 0.75});
  double alike = 0, ups[2] = {};
  for (std::int64_t i = 0; i < kCount; ++i) {
    const bool up = m.view().as<bf16>()[i].bits == 0x3f81u;
    const bool square_up = v.view().as<bf16>()[i].bits == 0x3f81u;
    ups[0] += up;
    ups[1] += square_up;
    alike += up == square_up;
  }
  const double error = 0.5 / std::sqrt(static_cast<double>(kCount));
  for (const double share : {alike / kCount, ups[0] / kCount, ups[1] / kCount}) {
    CHECK(std::abs(share - 0.5) < 5 * error + 0x1p-7);  // (1 + 2^-7)^2 is a little above the middle
  }
}

TEST_CASE("states that are no numbers stay what they are, and what is finite stays finite") {
  const std::vector<float> kinds = {0.0f,    -0.0f,    INFINITY,  -INFINITY,  NAN,
                                    FLT_MAX, -FLT_MAX, 0x1p-130f, -0x1p-133f, 1.0f};
  std::vector<float> buffer, g;
  for (std::size_t i = 0; i < 31 * kinds.size(); ++i) {
    buffer.push_back(i % 2 == 0 ? kinds[i / 2 % kinds.size()] : 0.0f);
    g.push_back(i % 2 == 0 ? 0.0f : kinds[i / 2 % kinds.size()]);
  }
  const StateRounding rounding = every_state_rounding(std::ssize(g)).front();
  const auto expected = summed(cpu_reference_table(), buffer, g, rounding);
  CHECK(summed(cpu_table(), buffer, g, rounding) == expected);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(buffer[i]) >> 16);
    const float sum = to_float(bf16{upper}) + g[i], found = to_float(expected[i]);
    CAPTURE(sum);
    CHECK(std::isnan(found) == std::isnan(sum));
    CHECK(std::isinf(found) == std::isinf(sum));
    if (std::isfinite(sum)) CHECK(std::abs(found - sum) <= std::abs(sum) * 0x1p-7 + 0x1p-133);
  }
}

TEST_CASE("bf16 states stay to the bit where the decision does not apply") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const Problem& problem : every_problem()) {
      Machine machine(*table, DType::f32, DType::f32, 2);
      const Case c(machine, problem.rule, 40, MasterKind::whole, every_state_rounding(40).front());
      const auto before = contents(c);
      const Tensor no = rule_decision(machine, 1, 1, false);
      if (problem.by_adam) {
        run_adam(machine, c.for_adam(), adam(no));
      } else {
        run_rule(machine, c.tensors, {.decision = no, .rule = problem.rule});
      }
      CHECK(contents(c) == before);
    }
  }
}

TEST_CASE("states are bf16 where they are rounded, all of a list, and beside FP32 alone") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const StateRounding rounding = every_state_rounding(6).front();
  const Tensor p = machine.operand("p", {6}), g = machine.operand("g", {6});
  const Tensor narrow = machine.empty({6}, DType::bf16);
  const Tensor p64 = machine.empty({6}, DType::f64), g64 = machine.empty({6}, DType::f64);
  const Tensor now = rule_decision(machine, 1, 1);
  const AdamTensors moments{.to = {p, g}, .m = narrow, .v = narrow, .rounding = rounding};
  std::vector<AdamTensors> both{moments, moments};
  const Tensor table =
      make_table<AdamUpdate>(*machine.ctx().device, std::span<const AdamTensors>(both), "table");
  const auto check = [&] { AdamUpdate{.tensors = both, .table = table, .decision = now}.check(); };
  check();
  const auto refused = [&](const auto& change) {
    change(both[1]);
    CHECK_THROWS_AS(check(), InternalError);
    both[1] = moments;
  };
  refused([&](AdamTensors& t) { t.rounding = {}; });
  refused([&](AdamTensors& t) { t.m = g; });
  refused([&](AdamTensors& t) { t.v = g; });
  refused([&](AdamTensors& t) { t.to = {p64, g64}; });
  refused([&](AdamTensors& t) { t = {.to = {p, g}, .m = g, .v = g}; });
  // The same of rules.
  std::vector<RuleTensors> rows(2, {.to = {p, g}, .states = {narrow}, .rounding = rounding});
  const Tensor of_rules =
      make_table<RuleUpdate>(*machine.ctx().device, std::span<const RuleTensors>(rows), "table");
  const RuleUpdate lion{.tensors = rows, .table = of_rules, .decision = now, .rule = rules::Lion{}};
  lion.check();
  rows[1].rounding = {};
  CHECK_THROWS_AS(lion.check(), InternalError);
  rows[1].states[0] = g;  // by itself it would do
  CHECK_THROWS_AS(lion.check(), InternalError);
  rows[1].rounding = rounding;
  CHECK_THROWS_AS(lion.check(), InternalError);
}

}  // namespace llmtrain::kernels
