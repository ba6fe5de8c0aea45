// Second moments of blocks: by hand, the fast kernels' bits, whatever the threads, and blocks of
// every size.
#include "kernels/block_moments.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using test::run_squared_norm;
using trial::decision_of;
using trial::kSameBits;
using trial::Machine;
using trial::values_of;

namespace {

struct Blocks {
  std::int64_t count, size;
};
constexpr Blocks kBlocks[] = {{1, 1},   {0, 7},      {3, 1},      {5, 7},
                              {40, 96}, {200, 1024}, {3, 20'000}, {1, 70'001}};

}  // namespace

TEST_CASE("squares of blocks are squared norms of gradients of just these elements") {
  for (const auto& [count, size] : kBlocks) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
        CAPTURE(count);
        CAPTURE(size);
        Machine machine(*table, dtype, dtype, 3);
        const Tensor g = machine.operand("g", {count * size});
        const Tensor out = machine.empty({count}, DType::f64);
        machine.run(BlockSquares{.g = g, .block = size, .out = out});
        const Tensor alone = machine.empty({1}, DType::f64);
        for (std::int64_t i = 0; i < count; ++i) {
          run_squared_norm(machine, g.columns(i * size, size), alone);
          CHECK(values_of(out)[static_cast<std::size_t>(i)] == values_of(alone)[0]);
        }
      }
    }
  }
}

TEST_CASE("moments of blocks follow the means of clipped squares") {
  Machine machine(cpu_table(), DType::f64, DType::f64, 1);
  const Tensor moment = machine.of({3, 0}, {2}, DType::f64);
  const Tensor squares = machine.of({8, 0.5}, {2}, DType::f64);
  const Tensor half = decision_of(machine, 0.5);
  machine.run(BlockMoments{
      .squares = squares, .moment = moment, .decision = half, .beta2 = 0.75, .count = 4});
  CHECK(values_of(moment)[0] == 0.75 * 3 + 0.25 * (8 * 0.25 / 4));
  CHECK(values_of(moment)[1] == 0.25 * (0.5 * 0.25 / 4));
}

TEST_CASE(
    "moments of blocks add eps to means, forget less and less, and know what is no gradient") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f64, DType::f64, 1);
    const Tensor moment = machine.of({3, 0}, {2}, DType::f64);
    const Tensor squares = machine.of({8, 0.5}, {2}, DType::f64);
    const Tensor decision = decision_of(machine, 0.5, 4);
    BlockMoments op{.squares = squares, .moment = moment, .decision = decision, .count = 4};
    op.eps = 0.25;
    op.decay_power = 0.5;  // of update 4: 1 - 4^-0.5
    machine.run(op);
    CHECK(values_of(moment)[0] == 0.5 * 3 + 0.5 * (8 * 0.25 / 4 + 0.25));
    CHECK(values_of(moment)[1] == 0.5 * (0.5 * 0.25 / 4 + 0.25));
    trial::set_values(moment, {3, 0});
    op.of_gradient = false;
    machine.run(op);
    CHECK(values_of(moment)[0] == 0.5 * 3 + 0.5 * (2 + 0.25));
    CHECK(values_of(moment)[1] == 0.5 * (0.125 + 0.25));
    op.decay_power = -0.5;
    CHECK_THROWS_AS(op.check(), InternalError);
  }
}

TEST_CASE("fast updates with moments of blocks have the reference's bits") {
  for (const auto& [count, size] : kBlocks) {
    for (const DType copy_dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(count);
      CAPTURE(size);
      const std::int64_t n = count * size, block = size;
      trial::compare(
          [&](Machine& machine) {
            const Tensor p = machine.operand("p", {n}), g = machine.operand("g", {n});
            const Tensor m = machine.operand("m", {n}), copy = machine.empty({n}, copy_dtype);
            const Tensor squares = machine.empty({count}, DType::f64);
            const Tensor moment = machine.of(trial::Values(static_cast<std::size_t>(count), 0.25),
                                             {count}, machine.compute());
            const Tensor decision = decision_of(machine, 0.7, 5, 0.9, 0.99);
            machine.run(BlockSquares{.g = g, .block = block, .out = squares});
            machine.run(BlockMoments{.squares = squares,
                                     .moment = moment,
                                     .decision = decision,
                                     .beta2 = 0.99,
                                     .count = block});
            machine.run(BlockAdamUpdate{.to = {p, g, copy},
                                        .m = m,
                                        .moment = moment,
                                        .decision = decision,
                                        .block = block,
                                        .lr_scale = 0.01,
                                        .weight_decay = 0.1,
                                        .decay_last = copy_dtype == DType::f32});
            return trial::outputs(p, m, moment, copy);
          },
          DType::f32, kSameBits);
    }
  }
}

TEST_CASE("one update with a moment of a block is the formula") {
  for (const bool decay_last : {false, true}) {
    Machine machine(cpu_table(), DType::f64, DType::f64, 1);
    const Tensor p = machine.of({1.5, -1, 2, 0}, {4}, DType::f64);
    const Tensor g = machine.of({4, -2, 0, 1}, {4}, DType::f64);
    const Tensor m = machine.of({0, 1, 0, 0}, {4}, DType::f64);
    const Tensor moment = machine.of({4, 0.25}, {2}, DType::f64);
    const Tensor decision = decision_of(machine, 0.5, 2, 0.8, 0.9);
    machine.run(BlockAdamUpdate{.to = {p, g},
                                .m = m,
                                .moment = moment,
                                .decision = decision,
                                .block = 2,
                                .lr_scale = 0.1,
                                .weight_decay = 0.3,
                                .beta1 = 0.8,
                                .eps = 1e-3,
                                .decay_last = decay_last});
    const double ms[] = {0.2 * 2, 0.8 - 0.2, 0, 0.2 * 0.5}, ps[] = {1.5, -1, 2, 0};
    for (std::size_t i = 0; i < 4; ++i) {
      const double root = std::sqrt((i < 2 ? 4 : 0.25) / (1 - 0.81)) + 1e-3;
      const double step = 0.1 * ms[i] / (1 - 0.64) / root, kept = 1 - 0.1 * 0.3;
      const double expected = decay_last ? (ps[i] - step) * kept : ps[i] * kept - step;
      CHECK(values_of(m)[i] == test::relative(ms[i], 1e-15));
      CHECK(values_of(p)[i] == test::relative(expected, 1e-14));
    }
  }
}

TEST_CASE("moments of blocks touch nothing where the decision does not apply") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 2);
    const Tensor p = machine.operand("p", {96}), g = machine.operand("g", {96});
    const Tensor m = machine.operand("m", {96}), moment = machine.operand("moment", {3});
    const Tensor squares = machine.of({1, 2, 3}, {3}, DType::f64);
    const auto all = [&] { return trial::outputs(p, m, moment); };
    const auto before = all();
    trial::Values numbers(UpdateDecision::kScalars, 1.0);
    numbers[2] = 0;  // apply
    const Tensor no = machine.of(numbers, {UpdateDecision::kScalars}, DType::f64);
    machine.run(BlockMoments{.squares = squares, .moment = moment, .decision = no, .count = 32});
    machine.run(
        BlockAdamUpdate{.to = {p, g}, .m = m, .moment = moment, .decision = no, .block = 32});
    const auto after = all();
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(trial::same_bits(after[i].values, before[i].values));
    }
  }
}

TEST_CASE("moments of blocks refuse operands that do not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor p = machine.operand("p", {6}), g = machine.operand("g", {6});
  const Tensor m = machine.operand("m", {6}), moment = machine.operand("moment", {2});
  const Tensor decision = decision_of(machine, 1), squares = machine.empty({2}, DType::f64);
  CHECK_THROWS_AS(machine.run(BlockSquares{.g = g, .block = 2, .out = squares}), InternalError);
  CHECK_THROWS_AS(machine.run(BlockSquares{.g = g, .block = 3, .out = moment}), InternalError);
  CHECK_THROWS_AS(machine.run(BlockMoments{.squares = squares, .moment = m, .decision = decision}),
                  InternalError);
  CHECK_THROWS_AS(machine.run(BlockAdamUpdate{
                      .to = {p, g}, .m = m, .moment = moment, .decision = decision, .block = 4}),
                  InternalError);
  CHECK_THROWS_AS(
      machine.run(BlockAdamUpdate{
          .to = {p, g}, .m = moment, .moment = moment, .decision = decision, .block = 3}),
      InternalError);
}

}  // namespace llmtrain::kernels
