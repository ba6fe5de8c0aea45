// Updates of bf16 parameters without a master.
#include <bit>
#include <cfloat>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/tensor/split_master.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::run_adam;
using test::run_rule;
using trial::decision_of;
using trial::kSizes;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

const PhiloxKey kKey = philox_key(3, "stochastic rounding", "w");

StochasticRounding by_chance(std::int64_t n, std::int64_t first = 0) {
  return {.on = true, .key = kKey, .first = first, .columns = std::max<std::int64_t>(1, n)};
}

/// What one update leaves: Adam's, SGD's, a step's along fp32 and along bf16.
std::vector<Values> updated(const KernelTable& table, std::int64_t n, const StochasticRounding& by,
                            int t = 5) {
  Machine machine(table, DType::f32, DType::f32, 2);
  const Tensor g = machine.operand("g", {n}), m = machine.operand("m", {n});
  const Tensor v = machine.of(Values(static_cast<std::size_t>(n), 0.01), {n}, DType::f32);
  const Tensor d = machine.normals("d", {n}, DType::bf16, DType::bf16);
  Tensor p[4];
  for (Tensor& tensor : p) tensor = machine.normals("p", {n}, DType::bf16, DType::bf16);
  const auto to = [&](const Tensor& parameter, const Tensor& gradient) {
    return UpdateOperands{
        .parameter = {}, .gradient = gradient, .compute_copy = parameter, .rounding = by};
  };
  const Tensor now = decision_of(machine, 0.7, t, 0.9, 0.999);
  run_adam(machine, {to(p[0], g), m, v, 1e-3, 0.1}, {.decision = now});
  run_rule(machine, {to(p[1], g), {}, 1e-3}, {.decision = now});
  machine.run(StepUpdate{to(p[2], g), now, 1e-3, 0.1});
  machine.run(StepUpdate{to(p[3], d), now, 1e-3, 0.1});
  return {values_of(p[0]), values_of(p[1]), values_of(p[2]), values_of(p[3]), values_of(m)};
}

}  // namespace

TEST_CASE("updates without a master have the reference's bits, rounded either way") {
  for (const std::int64_t n : kSizes) {
    CAPTURE(n);
    for (const StochasticRounding& by :
         {StochasticRounding{}, by_chance(n), by_chance(n, 4099),
          StochasticRounding{.on = true, .key = kKey, .first = 6, .columns = 7, .stride = 19}}) {
      CHECK(updated(cpu_table(), n, by) == updated(cpu_reference_table(), n, by));
    }
  }
  const auto words = updated(cpu_table(), 1025, by_chance(1025));
  CHECK(updated(cpu_table(), 1025, by_chance(1025), 6) != words);  // another update
  CHECK(updated(cpu_table(), 1025, by_chance(1025, 1)) != words);  // other elements
  CHECK(updated(cpu_table(), 1025, {}) != words);
}

TEST_CASE("an update without a master is that of its formula, rounded by its element's word") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  constexpr std::int64_t kCount = 77;
  const Tensor p = machine.normals("p", {kCount}, DType::bf16, DType::bf16);
  const Tensor g = machine.operand("g", {kCount});
  const Values before = values_of(p), gradients = values_of(g);
  const Tensor now = decision_of(machine, 1, 9);
  UpdateOperands to{.parameter = {}, .gradient = g, .compute_copy = p};
  to.rounding = {.on = true, .key = kKey, .first = 40, .columns = 11, .stride = 100};
  run_rule(machine, {to, {}, 0.01}, {.decision = now});
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto exact = static_cast<float>(before[i]) - 0.01f * static_cast<float>(gradients[i]);
    const std::uint32_t word = philox_word(kKey, 9, 40 + i / 11 * 100 + i % 11);
    CHECK(p.view().as<bf16>()[i] == round_stochastically(exact, word));
  }
}

TEST_CASE(
    "parts of a parameter are rounded as the whole, and the fast rounding knows all numbers") {
  const float kinds[] = {0.0f,           -0.0f,        INFINITY,
                         -INFINITY,      NAN,          FLT_MAX,
                         -FLT_MAX,       FLT_TRUE_MIN, 1 + 0x1p-12f,
                         -1 - 0x1.8p-9f, 0x1p-130f,    std::bit_cast<float>(0xff800001u)};
  constexpr std::int64_t kCount = 12 * 31;
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor zero = machine.of(Values(kCount, 0.0), {kCount}, DType::bf16);
    const Tensor d = machine.empty({kCount}, DType::f32);
    for (std::int64_t i = 0; i < kCount; ++i) d.view().as<float>()[i] = kinds[i % 12];
    const Tensor now = decision_of(machine, 1, 2);
    machine.run(StepUpdate{
        {.parameter = {}, .gradient = d, .compute_copy = zero, .rounding = by_chance(kCount)},
        now,
        1,
        0,
        1});
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::uint32_t word = philox_word(kKey, 2, static_cast<std::uint64_t>(i));
      CHECK(zero.view().as<bf16>()[i] == round_stochastically(0.0f + kinds[i % 12], word));
    }
    // The second half by itself.
    const Tensor half = machine.of(Values(kCount / 2, 0.0), {kCount / 2}, DType::bf16);
    const Tensor rest = d.columns(kCount / 2, kCount / 2);
    machine.run(StepUpdate{{.parameter = {},
                            .gradient = rest,
                            .compute_copy = half,
                            .rounding = by_chance(kCount / 2, kCount / 2)},
                           now,
                           1,
                           0,
                           1});
    for (std::int64_t i = 0; i < kCount / 2; ++i) {
      CHECK(half.view().as<bf16>()[i] == zero.view().as<bf16>()[kCount / 2 + i]);
    }
  }
}

TEST_CASE("masters are rounded to nearest, and what has none is bf16") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor p = machine.operand("p", {6}), g = machine.operand("g", {6});
  const Tensor narrow = machine.empty({6}, DType::bf16);
  const Tensor now = decision_of(machine, 1);
  RuleTensors tensors{.to = {.parameter = {}, .gradient = g, .compute_copy = narrow}, .states = {}};
  const RuleUpdate sgd{.tensors = std::span(&tensors, 1), .table = {}, .decision = now};
  sgd.check();
  tensors.to.rounding = by_chance(6);
  sgd.check();
  const auto refused = [&](const auto& change) {
    const UpdateOperands before = tensors.to;
    change(tensors.to);
    CHECK_THROWS_AS(sgd.check(), InternalError);
    tensors.to = before;
  };
  refused([&](UpdateOperands& to) { to.parameter = p; });
  refused([&](UpdateOperands& to) { to.compute_copy = p; });
  refused([&](UpdateOperands& to) { to.compute_copy = {}; });
  refused(
      [&](UpdateOperands& to) { to.remainder = machine.integers(std::vector<std::uint16_t>(6)); });
}

}  // namespace llmtrain::kernels
