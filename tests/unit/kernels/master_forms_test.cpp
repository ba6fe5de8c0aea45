// Updates of masters in either form: whole, or as what their bf16 copies lack.
#include <bit>
#include <cfloat>

#include <doctest/doctest.h>

#include "lib/tensor/split_master.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::run_adam;
using test::run_rule;
using trial::decision_of;
using trial::kSameBits;
using trial::kSizes;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

/// Masters in both forms: `whole` with its copy, and the halves of the same values.
struct BothForms {
  Tensor whole, copy, high, low;

  BothForms(Machine& machine, std::int64_t n)
      : whole(machine.operand("p", {n})),
        copy(machine.empty({n}, DType::bf16)),
        high(machine.empty({n}, DType::bf16)),
        low(machine.integers(std::vector<std::uint16_t>(static_cast<std::size_t>(n)))) {
    for (std::int64_t i = 0; i < n; ++i) {
      const MasterParts parts = split_master(whole.view().as<float>()[i]);
      high.view().as<bf16>()[i] = parts.copy;
      low.view().as<std::uint16_t>()[i] = parts.remainder;
    }
  }
  UpdateOperands as_whole(const View& gradient) const {
    return {.parameter = whole, .gradient = gradient, .compute_copy = copy};
  }
  UpdateOperands as_halves(const View& gradient) const {
    return {.parameter = {}, .gradient = gradient, .compute_copy = high, .remainder = low};
  }
  bool agree() const {
    for (std::int64_t i = 0; i < whole.numel(); ++i) {
      const MasterParts parts{high.view().as<bf16>()[i], low.view().as<std::uint16_t>()[i]};
      if (join_master(parts) != whole.view().as<float>()[i]) return false;
      if (parts.copy != copy.view().as<bf16>()[i]) return false;
    }
    return true;
  }
};

}  // namespace

TEST_CASE("updates of halves have the bits of whole masters") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      Machine machine(*table, DType::f32, DType::f32, 2);
      const BothForms adam(machine, n), sgd(machine, n), step(machine, n), narrow(machine, n);
      const Tensor g = machine.operand("g", {n});
      const Tensor d = machine.normals("d", {n}, DType::bf16, DType::bf16);
      const Values zeros(static_cast<std::size_t>(n), 0.0);
      Tensor states[4];
      for (Tensor& state : states) state = machine.of(zeros, {n}, DType::f32);
      for (int t = 1; t <= 3; ++t) {
        const Tensor now = decision_of(machine, 1, t, 0.9, 0.999);
        run_adam(machine, {adam.as_whole(g), states[0], states[1], 1e-3}, {.decision = now});
        run_adam(machine, {adam.as_halves(g), states[2], states[3], 1e-3}, {.decision = now});
        run_rule(machine, {sgd.as_whole(g), {}, 1e-3}, {.decision = now});
        run_rule(machine, {sgd.as_halves(g), {}, 1e-3}, {.decision = now});
        machine.run(StepUpdate{step.as_whole(g), now, 1e-3, 0.1});
        machine.run(StepUpdate{step.as_halves(g), now, 1e-3, 0.1});
        machine.run(StepUpdate{narrow.as_whole(d), now, 1e-3, 0.1});
        machine.run(StepUpdate{narrow.as_halves(d), now, 1e-3, 0.1});
      }
      CHECK(adam.agree());
      CHECK(sgd.agree());
      CHECK(step.agree());
      CHECK(narrow.agree());
    }
  }
}

TEST_CASE("the fast split of a master is the reference's for every kind of number") {
  const float kinds[] = {0.0f,
                         -0.0f,
                         INFINITY,
                         -INFINITY,
                         NAN,
                         FLT_MAX,
                         -FLT_MAX,
                         FLT_TRUE_MIN,
                         1 + 0x1p-8f,
                         -1 - 0x1.8p-7f,
                         0x1p-130f,
                         1 + 0x1.8p-8f,
                         std::bit_cast<float>(0x7fffffffu),
                         std::bit_cast<float>(0xff800001u)};
  const std::int64_t n = std::ssize(kinds) * 37;
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor p = machine.empty({n}, DType::f32), copy = machine.empty({n}, DType::bf16);
    const Tensor none = machine.of(Values(static_cast<std::size_t>(n), 0.0), {n}, DType::f32);
    const BothForms halves(machine, n);
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = kinds[i % std::ssize(kinds)];
      p.view().as<float>()[i] = value;
      halves.high.view().as<bf16>()[i] = split_master(value).copy;
      halves.low.view().as<std::uint16_t>()[i] = split_master(value).remainder;
    }
    const Tensor decision = decision_of(machine, 1);
    machine.run(StepUpdate{{p, none, copy}, decision, 1, 0, 1});
    machine.run(StepUpdate{halves.as_halves(none), decision, 1, 0, 1});
    for (std::int64_t i = 0; i < n; ++i) {
      const MasterParts expected = split_master(kinds[i % std::ssize(kinds)] + 0.0f);
      CHECK(copy.view().as<bf16>()[i] == expected.copy);
      CHECK(halves.high.view().as<bf16>()[i] == expected.copy);
      CHECK(halves.low.view().as<std::uint16_t>()[i] == expected.remainder);
    }
  }
}

TEST_CASE("a step along a direction is that of its formula, with the reference's bits") {
  for (const std::int64_t n : kSizes) {
    for (const DType direction : {DType::f32, DType::bf16}) {
      trial::compare(
          [&](Machine& machine) {
            const Tensor p = machine.operand("p", {n});
            const Tensor d = machine.normals("d", {n}, machine.or_double(direction), direction);
            const Tensor copy = machine.empty({n}, DType::bf16);
            const Tensor decision = decision_of(machine, 0.3);
            machine.run(StepUpdate{{p, d, copy}, decision, 0.5, 0.2, -0.5});
            const Tensor q = machine.operand("p", {n});
            machine.run(StepUpdate{{q, d}, decision, 0.5, 0.2, -0.5, true});
            return trial::outputs(p, copy, q);
          },
          DType::f32, kSameBits);
    }
  }
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor p = machine.of({4, -2}, {2}, DType::f32);
  const Tensor d = machine.of({1, 8}, {2}, DType::bf16);
  const Tensor decision = decision_of(machine, 0.3);
  machine.run(StepUpdate{{p, d}, decision, 0.25, 2, -1});
  CHECK(values_of(p) == Values{1.75, -3});
  const Tensor last = machine.of({4, -2}, {2}, DType::f32);
  machine.run(StepUpdate{{last, d}, decision, 0.25, 2, -1, true});
  CHECK(values_of(last) == Values{1.875, -2});
}

}  // namespace llmtrain::kernels
