// Updates with bf16 states on the device: the reference's bits.
#include "tests/cuda/machine.hpp"
#include "tests/support/bf16_states_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;
using llmtrain::test::every_rule_with_states;
using llmtrain::test::every_state_rounding;
using llmtrain::test::kEveryMaster;
using llmtrain::test::MasterKind;
using llmtrain::test::rule_decision;
using llmtrain::test::rule_with_states_of_adam;
using llmtrain::test::run_adam;
using llmtrain::test::run_rule;

namespace {

using Case = test::Bf16StatesCase<Machine>;

AdamUpdate adam(const View& decision) {
  return {.decision = decision, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6};
}

std::vector<Values> contents(Machine& m, const Case& c) {
  std::vector<Values> all;
  for (const Tensor& tensor : c.all) all.push_back(m.read(tensor));
  return all;
}

/// What two updates leave by a rule, or by AdamUpdate where there is none.
std::vector<Values> updated(Place place, const UpdateRule* rule, std::int64_t n, MasterKind kind,
                            const StateRounding& rounding, std::int64_t offset,
                            std::int64_t states_offset) {
  Machine m(place, DType::f32, DType::f32);
  const Case c(m, rule == nullptr ? rule_with_states_of_adam() : *rule, n, kind, rounding, offset,
               states_offset);
  for (const int t : {1, 5}) {
    const Tensor now = rule_decision(m, 0.7, t);
    if (rule == nullptr) {
      run_adam(m, c.for_adam(), adam(now));
    } else {
      run_rule(m, c.tensors, {.decision = now, .rule = *rule});
    }
  }
  return contents(m, c);
}

void compare_updates(const UpdateRule* rule) {
  for (const MasterKind kind : kEveryMaster) {
    for (const std::int64_t n : {0, 1, 39, 5002}) {
      for (const StateRounding& rounding : every_state_rounding(n)) {
        for (const auto& [offset, states_offset] :
             {std::pair(0, 0), std::pair(1, 1), std::pair(4, 4), std::pair(0, 1),
              std::pair(4, 6)}) {
          if (n == 0 && states_offset > 0) continue;
          CAPTURE(static_cast<int>(kind));
          CAPTURE(n);
          CAPTURE(rounding.words.first);
          CAPTURE(offset);
          CAPTURE(states_offset);
          CHECK(updated(Place::gpu, rule, n, kind, rounding, offset, states_offset) ==
                updated(Place::reference, rule, n, kind, rounding, offset, states_offset));
        }
      }
    }
  }
}

constexpr std::int64_t kListSizes[] = {0, 5, kListChunk, 0, kListChunk + 1, 20001, 1, 0};

/// What one launch leaves of a list, each with a key and a place of its own.
std::vector<Values> updated_list(Place place, const UpdateRule* rule) {
  Machine m(place, DType::f32, DType::f32);
  std::vector<Case> cases;
  std::vector<RuleTensors> tensors;
  std::vector<AdamTensors> moments;
  for (const std::int64_t n : kListSizes) {
    StateRounding rounding = every_state_rounding(n)[cases.size() % 4];
    rounding.keys[0].k0 += static_cast<std::uint32_t>(cases.size());
    const Case& c = cases.emplace_back(m, rule == nullptr ? rule_with_states_of_adam() : *rule, n,
                                       MasterKind::with_bf16_copy, rounding);
    tensors.push_back(c.tensors);
    if (rule == nullptr) moments.push_back(c.for_adam());
  }
  const Tensor now = rule_decision(m, 0.7, 4);
  if (rule == nullptr) {
    AdamUpdate all = adam(now);
    all.tensors = moments;
    const Tensor table = make_table<AdamUpdate>(m.device(), all.tensors, "table");
    all.table = table;
    m.run(all);
  } else {
    const std::span<const RuleTensors> all(tensors);
    const Tensor table = make_table<RuleUpdate>(m.device(), all, "table");
    m.run(RuleUpdate{.tensors = all, .table = table, .decision = now, .rule = *rule});
  }
  std::vector<Values> found;
  for (const Case& c : cases) {
    for (Values& values : contents(m, c)) found.push_back(std::move(values));
  }
  return found;
}

}  // namespace

TEST_CASE("Adam's updates with bf16 states have the reference's bits in every form of the master") {
  compare_updates(nullptr);
}

TEST_CASE("updates by rules with bf16 states have the reference's bits in every form") {
  for (const UpdateRule& rule : every_rule_with_states()) {
    CAPTURE(rule.index());
    compare_updates(&rule);
  }
}

TEST_CASE("lists of parameters with bf16 states have the reference's bits") {
  CHECK(updated_list(Place::gpu, nullptr) == updated_list(Place::reference, nullptr));
  for (const UpdateRule& rule : every_rule_with_states()) {
    CAPTURE(rule.index());
    CHECK(updated_list(Place::gpu, &rule) == updated_list(Place::reference, &rule));
  }
}

TEST_CASE("bf16 states on the device are no numbers where the reference's are none") {
  const Values kinds = {0.0, -0.0, INFINITY, -INFINITY, NAN, 3e38, -3e38, 1e-39, 1.0};
  const auto found = [&](Place place) {
    Machine m(place, DType::f32, DType::f32);
    const std::int64_t n = 4 * std::ssize(kinds);
    Values buffer, g;
    for (std::int64_t i = 0; i < n; ++i) {
      const double kind = kinds[static_cast<std::size_t>(i) % kinds.size()];
      buffer.push_back(i % 2 == 0 ? kind : 1);
      g.push_back(i % 2 == 0 ? 1e-3 : kind);
    }
    const Tensor state = m.of(buffer, {n}, DType::bf16), gradient = m.of(g, {n}, DType::f32);
    const Tensor p = m.zeros({n}, DType::f32), now = rule_decision(m, 1, 3);
    run_rule(m,
             {.to = {p, gradient}, .states = {state}, .rounding = every_state_rounding(n).front()},
             {.decision = now, .rule = rules::Momentum{.momentum = 1}});
    return m.read(state);
  };
  const Values expected = found(Place::reference), values = found(Place::gpu);
  CHECK(max_difference(values, expected) == 0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(std::signbit(values[i]) == std::signbit(expected[i]));
  }
}
