#include "kernels/optimizer.hpp"

#include <cstring>

#include <doctest/doctest.h>

#include "tests/support/relative.hpp"
#include "tests/support/rule_case.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::run_adam;
using test::run_rule;
using test::run_squared_norm;
using trial::decision_of;
using trial::kSameBits;
using trial::kSizes;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

/// One parameter of a textbook update in double, as PyTorch's documentation writes it.
struct Scalar {
  double p, m = 0, v = 0, b = 0;

  void adam(double g, double lr, double beta1, double beta2, double eps, double decay,
            WeightDecay order, int t) {
    if (order == WeightDecay::before_step) p -= lr * decay * p;
    if (order == WeightDecay::in_gradient) g += decay * p;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = m / (1 - std::pow(beta1, t));
    const double v_hat = v / (1 - std::pow(beta2, t));
    p -= lr * m_hat / (std::sqrt(v_hat) + eps);
    if (order == WeightDecay::after_step) p -= lr * decay * p;
  }
  void sgd(double g, double lr, double momentum, double dampening, double decay, bool nesterov,
           int t) {
    g += decay * p;
    b = t == 1 ? g : momentum * b + (1 - dampening) * g;
    p -= lr * (nesterov ? g + momentum * b : b);
  }
};

}  // namespace

TEST_CASE("three steps of Adam and AdamW give PyTorch's numbers") {
  const Values gradients = {0.5, -2, 0.25};
  for (const WeightDecay order : test::kEveryDecay) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(cpu_table(), dtype, dtype, 1);
      const Tensor p = machine.of({1.5}, {1}, dtype);
      const Tensor m = machine.of({0}, {1}, dtype);
      const Tensor v = machine.of({0}, {1}, dtype);
      Scalar expected{1.5};
      for (int t = 1; t <= 3; ++t) {
        const double g = gradients[static_cast<std::size_t>(t - 1)];
        const Tensor gradient = machine.of({2 * g}, {1}, dtype);
        const Tensor decision = decision_of(machine, 0.5, t, 0.8, 0.95);
        run_adam(machine, {{p, gradient}, m, v, 0.1, 0.3},
                 {.decision = decision, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .decay = order});
        expected.adam(g, 0.1, 0.8, 0.95, 1e-6, 0.3, order, t);
        // After cancelling, what is left of m is a hundredth of its terms.
        const double epsilon = dtype == DType::f64 ? 1e-14 : 5e-6;
        CHECK(values_of(p)[0] == test::relative(expected.p, epsilon));
        CHECK(values_of(m)[0] == test::relative(expected.m, epsilon));
        CHECK(values_of(v)[0] == test::relative(expected.v, epsilon));
      }
    }
  }
  // AdamW's first step without decay moves every parameter by lr, whatever the gradient.
  Machine machine(cpu_table(), DType::f64, DType::f64, 1);
  const Tensor p = machine.of({1, 1}, {2}, DType::f64);
  const Tensor zero = machine.of({0, 0}, {2}, DType::f64);
  const Tensor zero_too = machine.of({0, 0}, {2}, DType::f64);
  const Tensor g = machine.of({1e-3, -50}, {2}, DType::f64);
  const Tensor decision = decision_of(machine, 1, 1, 0.9, 0.999);
  run_adam(machine, {{p, g}, zero, zero_too, 0.01},
           {.decision = decision, .beta1 = 0.9, .beta2 = 0.999, .eps = 0});
  CHECK(values_of(p)[0] == test::relative(0.99, 1e-14));
  CHECK(values_of(p)[1] == test::relative(1.01, 1e-14));
}

TEST_CASE("three steps of SGD in all its forms give PyTorch's numbers") {
  const Values gradients = {0.5, -2, 0.25};
  for (const bool nesterov : {false, true}) {
    for (const double momentum : {0.0, 0.9}) {
      if (nesterov && momentum == 0) continue;
      for (const DType dtype : {DType::f64, DType::f32}) {
        const double dampening = nesterov || momentum == 0 ? 0 : 0.2;
        Machine machine(cpu_table(), dtype, dtype, 1);
        const Tensor p = machine.of({1.5}, {1}, dtype);
        const Tensor b = momentum == 0 ? Tensor() : machine.output({1});
        Scalar expected{1.5};
        for (int t = 1; t <= 3; ++t) {
          const double g = gradients[static_cast<std::size_t>(t - 1)];
          const Tensor gradient = machine.of({4 * g}, {1}, dtype);
          const Tensor decision = decision_of(machine, 0.25, t);
          RuleUpdate update{.decision = decision};
          if (momentum != 0) update.rule = rules::Momentum{momentum, dampening, nesterov};
          run_rule(machine, {{p, gradient}, {b}, 0.1, 0.3}, update);
          expected.sgd(g, 0.1, momentum, dampening, 0.3, nesterov, t);
          const double epsilon = dtype == DType::f64 ? 1e-14 : 1e-6;
          CHECK(values_of(p)[0] == test::relative(expected.p, epsilon));
        }
      }
    }
  }
}

TEST_CASE("fast updates have the reference's bits, masters and compute copies") {
  for (const std::int64_t n : kSizes) {
    for (const WeightDecay order : test::kEveryDecay) {
      for (const DType copy_dtype : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(n);
        trial::compare(
            [&](Machine& machine) {
              const Tensor p = machine.operand("p", {n});
              const Tensor g = machine.operand("g", {n});
              const Tensor m = machine.operand("m", {n});
              const Tensor v = machine.operand("v", {n});
              // v >= 0: its own square by way of one Adam step from zero.
              const Tensor zero =
                  machine.of(Values(static_cast<std::size_t>(n), 0.0), {n}, machine.compute());
              const Tensor unused = machine.operand("unused", {n});
              const Tensor first = decision_of(machine, 1, 1, 0.9, 0.5);
              run_adam(machine, {{unused, v}, m, zero, 0},
                       {.decision = first, .beta1 = 0.9, .beta2 = 0.5, .eps = 1});
              const Tensor copy = machine.empty({n}, copy_dtype);
              const Tensor fifth = decision_of(machine, 0.7, 5, 0.9, 0.99);
              run_adam(
                  machine, {{p, g, copy}, m, zero, 0.01, 0.1},
                  {.decision = fifth, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .decay = order});
              return trial::outputs(p, m, zero, copy);
            },
            DType::f32, kSameBits);
      }
    }
  }
}

TEST_CASE("a squared norm has the reference's bits and is right") {
  for (const std::int64_t n :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{17}, std::int64_t{1024},
        std::int64_t{5 * 1024 + 3}, std::int64_t{200000}}) {
    CAPTURE(n);
    trial::Limits limits;
    limits.reference = 16;
    limits.same_bits_as_reference = true;
    trial::compare(
        [&](Machine& machine) {
          const Tensor g = machine.operand("g", {n});
          const Tensor out = machine.empty({1}, DType::f64);
          run_squared_norm(machine, g, out);
          return trial::outputs(out);
        },
        DType::f32, limits);
  }
  Machine machine(cpu_reference_table(), DType::f64, DType::f64, 1);
  const Tensor g = machine.of({1, 2, 3, 4}, {4}, DType::f64);
  const Tensor out = machine.empty({1}, DType::f64);
  run_squared_norm(machine, g, out);
  CHECK(values_of(out)[0] == 30);
}

TEST_CASE("squared norms of aligned parts add up to that of the whole, bit by bit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Tensor g = machine.operand("g", {7, 1024});
  const auto norm = [&](std::int64_t begin, std::int64_t blocks) {
    const Tensor out = machine.empty({1}, DType::f64);
    const Tensor part = g.row_range(begin, blocks);
    run_squared_norm(machine, part, out);
    return values_of(out)[0];
  };
  CHECK(norm(0, 7) == norm(0, 4) + (norm(4, 2) + norm(6, 1)));
}

TEST_CASE("clipping by value limits both signs and keeps NaN") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      Values input(40, 0.5);
      input[1] = 3;
      input[20] = -3;
      input[39] = std::nan("");
      const Tensor g = machine.of(input, {40}, dtype);
      machine.run(ClipByValue{g, 1.25});
      const Values found = values_of(g);
      CHECK(found[0] == 0.5);
      CHECK(found[1] == 1.25);
      CHECK(found[20] == -1.25);
      CHECK(std::isnan(found[39]));
    }
  }
}

TEST_CASE("updates touch nothing where the decision does not apply") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Tensor no =
          machine.of(Values(UpdateDecision::kScalars, 0.0), {UpdateDecision::kScalars}, DType::f64);
      const Tensor p = machine.operand("p", {40}), g = machine.operand("g", {40});
      const Tensor m = machine.operand("m", {40}), v = machine.operand("v", {40});
      const Tensor copy = machine.empty({40}, DType::bf16);
      const auto all = [&] {
        return std::vector{values_of(p), values_of(g), values_of(m), values_of(v), values_of(copy)};
      };
      const auto before = all();
      run_adam(machine, {{p, g, copy}, m, v, 0.1}, {.decision = no});
      machine.run(StepUpdate{{p, g, copy}, no});
      machine.run(ScaleUpdate{.x = g, .y = p, .decision = no, .scale = {2}});
      machine.run(ScaleUpdate{.x = g, .y = p, .decision = no, .accumulate = true});
      CHECK(all() == before);
    }
  }
}

TEST_CASE("a linear part of an update takes of the decision what it is asked to") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor x = machine.of({1, -2, 4}, {3}, DType::f32);
    const Tensor y = machine.of({8, 8, 8}, {3}, DType::f32);
    const Tensor half = decision_of(machine, 0.5);
    half.view().as<UpdateDecision>()->lr = 4;
    machine.run(ScaleUpdate{.x = x, .y = y, .decision = half, .scale = {2}, .accumulate = true});
    CHECK(values_of(y) == Values{10, 4, 16});
    const auto scaled = [&](const DecidedScale& scale) {
      machine.run(ScaleUpdate{.x = x, .y = y, .decision = half, .scale = scale});
      return values_of(y);
    };
    CHECK(scaled({6, false}) == Values{6, -12, 24});
    CHECK(scaled({6, true}) == Values{3, -6, 12});
  }
}

}  // namespace llmtrain::kernels
