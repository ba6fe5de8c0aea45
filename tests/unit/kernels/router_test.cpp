#include "kernels/router.hpp"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Routed {
  Values expert, weight;
};

Routed route(const Values& logits, std::int64_t rows, const RouterRule& rule,
             const Values& bias = {}, const KernelTable& table = cpu_reference_table()) {
  Machine machine(table, DType::f64, DType::f64, 1);
  const auto experts = static_cast<std::int64_t>(logits.size()) / rows;
  const Tensor expert = machine.empty({rows, rule.top_k}, DType::i32);
  const Tensor weight = machine.empty({rows, rule.top_k}, DType::f64);
  const Tensor keys = bias.empty() ? Tensor() : machine.of(bias, {experts}, DType::f64);
  machine.run(RouteTokens{.logits = machine.of(logits, {rows, experts}, DType::f64),
                          .bias = keys.view(),
                          .expert = expert,
                          .weight = weight,
                          .rule = rule});
  return {values_of(expert), values_of(weight)};
}

const std::vector<RouterRule>& rules() {
  static const std::vector<RouterRule> kRules{
      {.top_k = 1},
      {.top_k = 3},
      {.top_k = 2, .normalize = true},
      {.top_k = 6, .normalize = true, .scale = 2.5},
      {.top_k = 3, .scores = RouterScores::sigmoid},
      {.top_k = 2,
       .scores = RouterScores::sigmoid,
       .normalize = true,
       .scale = 1.5,
       .groups = 3,
       .kept_groups = 2},
      {.top_k = 2, .groups = 2, .kept_groups = 1},
  };
  return kRules;
}

constexpr std::int64_t kExperts = 6;
constexpr RouterLosses kLosses{.balance = 0.3, .z = 0.07, .seq_len = 5, .grad_scale = 0.25};

struct Problem {
  Values logits, choices;
  std::int64_t rows = 0, sequences = 0;
  RouterRule rule;
};

// What RouteTokensBackward is the gradient of: the weights by `dweight`, and the losses.
double objective(const Problem& p, const Values& dweight, const Values& expert) {
  double sum = 0;
  const auto k = static_cast<std::size_t>(p.rule.top_k);
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const auto row = static_cast<std::size_t>(i);
    const double* z = &p.logits[row * kExperts];
    double exp_sum = 0, score_sum = 0, chosen = 0, balance = 0;
    std::array<double, kExperts> score{};
    for (std::size_t e = 0; e < kExperts; ++e) exp_sum += std::exp(z[e]);
    for (std::size_t e = 0; e < kExperts; ++e) {
      score[e] = p.rule.scores == RouterScores::softmax ? std::exp(z[e]) / exp_sum
                                                        : 1 / (1 + std::exp(-z[e]));
      score_sum += score[e];
    }
    for (std::size_t j = 0; j < k; ++j) {
      chosen += score[static_cast<std::size_t>(expert[row * k + j])];
    }
    for (std::size_t j = 0; j < k; ++j) {
      const double s = score[static_cast<std::size_t>(expert[row * k + j])];
      sum += dweight[row * k + j] * p.rule.scale * (p.rule.normalize ? s / chosen : s);
    }
    const auto sequence = static_cast<std::size_t>(i / (p.rows / p.sequences));
    for (std::size_t e = 0; e < kExperts; ++e) {
      balance += kExperts / static_cast<double>(kLosses.seq_len) *
                 p.choices[sequence * kExperts + e] * score[e] / score_sum;
    }
    const double log_sum = std::log(exp_sum);
    sum += kLosses.grad_scale * (kLosses.balance * balance + kLosses.z * log_sum * log_sum);
  }
  return sum;
}

struct Backward {
  Tensor expert, dlogits, values;
};

Backward run_backward(Machine& machine, const Problem& p, std::int64_t gap) {
  const DType wide = machine.sink();
  const Tensor logits = machine.normals("logits", {p.rows, kExperts}, wide, DType::f32, gap);
  Backward b{.expert = machine.empty({p.rows, p.rule.top_k}, DType::i32),
             .dlogits = machine.empty({p.rows, kExperts}, machine.compute(), gap),
             .values = machine.empty({2, p.rows}, wide)};
  const Tensor weight = machine.empty({p.rows, p.rule.top_k}, wide);
  const Tensor choices = machine.empty({p.sequences, kExperts}, wide);
  machine.run(RouteTokens{
      .logits = logits, .bias = {}, .expert = b.expert, .weight = weight, .rule = p.rule});
  machine.run(CountChoices{.expert = b.expert, .choices = choices});
  machine.run(RouteTokensBackward{.logits = logits,
                                  .expert = b.expert,
                                  .dweight = machine.wide("dweight", {p.rows, p.rule.top_k}).view(),
                                  .choices = choices,
                                  .dlogits = b.dlogits,
                                  .values = b.values,
                                  .rule = p.rule,
                                  .losses = kLosses,
                                  .scalars = {},
                                  .decision = {}});
  return b;
}

}  // namespace

TEST_CASE("the largest keys are chosen, equal ones by number, and weigh as the rule says") {
  const double e1 = std::exp(1.0), e2 = std::exp(2.0), all = 2 + e1 + e2;
  const Routed plain = route({0, 2, 1, 0}, 1, {.top_k = 3});
  CHECK(plain.expert == Values{1, 2, 0});
  CHECK(plain.weight[0] == doctest::Approx(e2 / all).epsilon(1e-14));
  const Routed shares = route({0, 2, 1, 0}, 1, {.top_k = 2, .normalize = true, .scale = 3});
  CHECK(shares.weight[0] == doctest::Approx(3 * e2 / (e1 + e2)).epsilon(1e-14));
  CHECK(shares.weight[1] == doctest::Approx(3 * e1 / (e1 + e2)).epsilon(1e-14));
  // A bias decides who is chosen, and nothing else.
  const Routed biased =
      route({0, 2, 1, 0}, 1, {.top_k = 1, .scores = RouterScores::sigmoid}, {0, 0, 0, 5});
  CHECK(biased.expert == Values{3});
  CHECK(biased.weight == Values{0.5});
}

TEST_CASE("of groups those with the largest sums of two keys are kept") {
  const RouterRule rule{.top_k = 2, .scores = RouterScores::sigmoid, .groups = 3, .kept_groups = 1};
  // The largest key is in the first group, the largest pair in the last.
  CHECK(route({3, -9, 1, 1, 2, 2}, 1, rule).expert == Values{4, 5});
  CHECK(route({1, 1, 1, 1, 1, 1}, 1, rule).expert == Values{0, 1});
  const RouterRule two{.top_k = 3, .scores = RouterScores::sigmoid, .groups = 3, .kept_groups = 2};
  CHECK(route({3, -9, 1, 1, 2, 2}, 1, two).expert == Values{4, 5, 2});
}

TEST_CASE("a logit that is no number makes all weights of its row none, and leaves the others") {
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
      const Routed routed =
          route({0, kNan, 1, 0, 2, 1}, 2, {.top_k = 2, .scores = scores}, {}, *table);
      CHECK(std::isnan(routed.weight[0]));
      CHECK(std::isnan(routed.weight[1]));
      CHECK(routed.expert[0] < 3);
      CHECK(std::isfinite(routed.weight[2]));
      CHECK(routed.expert[2] == 1);
    }
  }
}

TEST_CASE("choices are counted by sequence; an id that no expert has is an error") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Tensor choices = machine.empty({2, 3}, DType::f32);
  const Tensor expert = machine.integers<std::int32_t>({0, 2, 2, -1, 1, 1, 0, 2}).reshape({4, 2});
  machine.run(CountChoices{.expert = expert, .choices = choices});
  CHECK(values_of(choices) == Values{1, 0, 2, 1, 2, 1});
  const Tensor wrong = machine.integers<std::int32_t>({0, 3}).reshape({2, 1});
  CHECK_THROWS_AS(machine.run(CountChoices{.expert = wrong, .choices = choices}), InternalError);
}

TEST_CASE("a bias follows the sign of what its expert lacks of the mean, if the step applies") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Machine machine(cpu_table(), dtype, dtype, 2);
    const auto moved = [&](const Values& choices, double apply) {
      const auto experts = static_cast<std::int64_t>(choices.size());
      const Values start(choices.size(), 1);
      const Tensor bias = machine.of(start, {experts}, dtype);
      Values decision(UpdateDecision::kScalars, 1);
      decision[2] = apply;
      machine.run(
          BalanceRouter{.choices = machine.of(choices, {experts}, dtype),
                        .bias = bias,
                        .decision = machine.of(decision, {UpdateDecision::kScalars}, DType::f64),
                        .speed = 0.25});
      return values_of(bias);
    };
    CHECK(moved({5, 3, 1, 3}, 1) == Values{0.75, 1, 1.25, 1});
    // A mean of 10 / 3, which no type holds.
    CHECK(moved({3, 3, 4}, 1) == Values{1.25, 1.25, 0.75});
    CHECK(moved({0, 0}, 1) == Values{1, 1});
    CHECK(moved({5, 3, 1, 3}, 0) == Values{1, 1, 1, 1});
  }
}

TEST_CASE("the gradient of logits is that of weights and losses") {
  for (const RouterRule& rule : rules()) {
    CAPTURE(rule.top_k);
    Machine machine(cpu_reference_table(), DType::f64, DType::f64, 1);
    Problem p{.logits = {}, .choices = {}, .rows = 10, .sequences = 2, .rule = rule};
    const Backward b = run_backward(machine, p, 0);
    p.logits = values_of(machine.normals("logits", {p.rows, kExperts}, DType::f64, DType::f32));
    const Values dweight = values_of(machine.wide("dweight", {p.rows, rule.top_k}));
    const Values expert = values_of(b.expert), dlogits = values_of(b.dlogits);
    p.choices.assign(2 * kExperts, 0);
    for (std::size_t c = 0; c < expert.size(); ++c) {
      ++p.choices[c / (expert.size() / 2) * kExperts + static_cast<std::size_t>(expert[c])];
    }
    double worst = 0;
    for (std::size_t i = 0; i < p.logits.size(); ++i) {
      constexpr double kStep = 1e-5;
      const double at = p.logits[i];
      p.logits[i] = at + kStep;
      const double above = objective(p, dweight, expert);
      p.logits[i] = at - kStep;
      const double below = objective(p, dweight, expert);
      p.logits[i] = at;
      worst = std::max(worst, std::abs((above - below) / (2 * kStep) - dlogits[i]));
    }
    CHECK(worst < 1e-8);
    // The losses by themselves, without their factors.
    const Values values = values_of(b.values);
    double sum = 0;
    for (std::size_t i = 0; i < 10; ++i) {
      sum += kLosses.grad_scale * (kLosses.balance * values[i] + kLosses.z * values[10 + i]);
    }
    const Values none(dweight.size(), 0);
    CHECK(sum == doctest::Approx(objective(p, none, expert)).epsilon(1e-12));
  }
}

TEST_CASE("routers agree with the reference and do not depend on threads") {
  for (const RouterRule& rule : rules()) {
    for (const std::int64_t rows : {0, 2, 130}) {
      CAPTURE(rule.top_k);
      CAPTURE(rows);
      const trial::Trial trial = [&](Machine& machine) {
        const Problem p{.logits = {}, .choices = {}, .rows = rows, .sequences = 2, .rule = rule};
        const Backward b = run_backward(machine, p, 3);
        return trial::outputs(b.dlogits, b.values);
      };
      trial::Limits limits;
      limits.reference = 100;
      limits.same_bits_as_reference = true;
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        trial::compare(trial, dtype, limits);
      }
    }
  }
}

}  // namespace llmtrain::kernels
