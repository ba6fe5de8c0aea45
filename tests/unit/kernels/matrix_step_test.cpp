// Updates by steps of matrices: by hand, and the fast kernel's bits in every form of the master.
#include <doctest/doctest.h>

#include "kernels/factored.hpp"
#include "lib/base/error.hpp"
#include "lib/tensor/split_master.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using trial::decision_of;
using trial::kSameBits;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

struct Run {
  std::int64_t matrices, each;
};
constexpr Run kRuns[] = {{1, 1},    {1, 7},         {3, 1},     {3, 40 * 96},
                         {2, 1030}, {1, 129 * 300}, {1, 70'001}};

/// Whether there is a moment, and of what.
enum class Moment : std::uint8_t { none, of_rated_steps, of_steps };
constexpr Moment kMoments[] = {Moment::none, Moment::of_rated_steps, Moment::of_steps};

/// The same with decay before the step, and after it.
constexpr std::pair<Moment, bool> kMomentsAndOrders[] = {
    {Moment::none, false}, {Moment::of_rated_steps, false}, {Moment::of_steps, false},
    {Moment::none, true},  {Moment::of_rated_steps, true},  {Moment::of_steps, true}};

/// An update but for its masters, with steps that are too long and parameters of several sizes.
struct Case {
  Tensor u, m, step_squares, parameter_squares, decision;
  MatrixStepUpdate update;

  Case(Machine& machine, const Run& run, Moment moment, bool decay_last = false)
      : u(machine.operand("u", {run.matrices * run.each})),
        m(machine.operand("m", {run.matrices * run.each})),
        step_squares(squares(machine, run, 0.5)),
        parameter_squares(squares(machine, run, 1e-8)),
        decision(decision_of(machine, 0.7, 5)),
        update{.to = {},
               .u = u,
               .m = moment == Moment::none ? View{} : m.view(),
               .clip = {.squares = step_squares, .numel = run.each},
               .parameter_squares = parameter_squares,
               .decision = decision,
               .matrices = run.matrices,
               .lr_scale = 0.01,
               .weight_decay = 0.1,
               .beta1 = 0.9,
               .relative = true,
               .rate_in_moment = moment == Moment::of_rated_steps,
               .decay_last = decay_last} {}

  static Tensor squares(Machine& machine, const Run& run, double of_first) {
    Values values;
    for (std::int64_t k = 0; k < run.matrices; ++k) {
      values.push_back((of_first + 0.75 * static_cast<double>(k)) * static_cast<double>(run.each));
    }
    return machine.of(values, {run.matrices}, DType::f64);
  }
  void run(Machine& machine, const UpdateOperands& to) {
    update.to = to;
    machine.run(update);
  }
};

}  // namespace

TEST_CASE("updates by steps of matrices have the reference's bits") {
  for (const Run& run : kRuns) {
    for (const Moment moment : kMoments) {
      for (const DType copy_dtype : {DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(run.matrices);
        CAPTURE(run.each);
        trial::compare(
            [&](Machine& machine) {
              const std::int64_t n = run.matrices * run.each;
              const Tensor p = machine.operand("p", {n}), g = machine.operand("g", {n});
              const Tensor copy = machine.empty({n}, copy_dtype);
              Case c(machine, run, moment, copy_dtype == DType::f32);
              c.run(machine, {p, g, copy});
              return trial::outputs(p, copy, c.m);
            },
            DType::f32, kSameBits);
      }
    }
  }
}

TEST_CASE("updates by steps of matrices have these bits whatever holds the masters") {
  for (const Run& run : kRuns) {
    for (const Moment moment : kMoments) {
      CAPTURE(run.each);
      const std::int64_t n = run.matrices * run.each;
      // What is left of halves, of a copy rounded to nearest, and of copies rounded by chance.
      const auto left = [&](const KernelTable& table, int threads) {
        Machine machine(table, DType::f32, DType::f32, threads);
        const Tensor p = machine.operand("p", {n}), g = machine.operand("g", {n});
        const Tensor high = machine.empty({n}, DType::bf16);
        const Tensor low =
            machine.integers(std::vector<std::uint16_t>(static_cast<std::size_t>(n)));
        for (std::int64_t i = 0; i < n; ++i) {
          const MasterParts parts = split_master(p.view().as<float>()[i]);
          high.view().as<bf16>()[i] = parts.copy;
          low.view().as<std::uint16_t>()[i] = parts.remainder;
        }
        const Tensor near = machine.of(values_of(high), {n}, DType::bf16);
        const Tensor by_chance = machine.of(values_of(high), {n}, DType::bf16);
        Case of_halves(machine, run, moment), of_near(machine, run, moment);
        Case of_chance(machine, run, moment);
        of_halves.run(machine,
                      {.parameter = {}, .gradient = g, .compute_copy = high, .remainder = low});
        of_near.run(machine, {.parameter = {}, .gradient = g, .compute_copy = near});
        of_chance.run(machine, {.parameter = {},
                                .gradient = g,
                                .compute_copy = by_chance,
                                .rounding = {.on = true,
                                             .key = philox_key(3, "stochastic rounding", "w"),
                                             .first = 6,
                                             .columns = 7,
                                             .stride = 19}});
        Values joined;
        for (std::int64_t i = 0; i < n; ++i) {
          joined.push_back(
              join_master({high.view().as<bf16>()[i], low.view().as<std::uint16_t>()[i]}));
        }
        return std::vector<Values>{joined, values_of(near), values_of(by_chance),
                                   values_of(of_chance.m)};
      };
      const auto expected = left(cpu_reference_table(), 1);
      for (const int threads : {1, 2, 3}) CHECK(left(cpu_table(), threads) == expected);
      // Halves are whole masters.
      Machine machine(cpu_table(), DType::f32, DType::f32, 2);
      const Tensor p = machine.operand("p", {n}), g = machine.operand("g", {n});
      Case whole(machine, run, moment);
      whole.run(machine, {p, g});
      CHECK(values_of(p) == expected[0]);
    }
  }
}

TEST_CASE("one update by a step is the formula") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      for (const auto& [moment, decay_last] : kMomentsAndOrders) {
        Machine machine(*table, dtype, dtype, 1);
        const Tensor p = machine.of({1.5, -1, 2, 0}, {4}, dtype), g = machine.empty({4}, dtype);
        const Tensor u = machine.of({4, -2, 0, 1}, {4}, dtype);
        const Tensor m = machine.of({0, 1, 0, 0}, {4}, dtype);
        // RMS of the steps is 4 and 1, of the parameters 0.5 and less than the least.
        const Tensor steps = machine.of({32, 2}, {2}, DType::f64);
        const Tensor sizes = machine.of({0.5, 1e-9}, {2}, DType::f64);
        const Tensor decision = decision_of(machine, 0.5, 16);
        MatrixStepUpdate op{.to = {p, g},
                            .u = u,
                            .m = moment == Moment::none ? View{} : m.view(),
                            .clip = {.squares = steps, .numel = 2, .threshold = 2},
                            .parameter_squares = sizes,
                            .least_scale = 0.125,
                            .decision = decision,
                            .matrices = 2,
                            .lr_scale = 0.1,
                            .weight_decay = 0.3,
                            .beta1 = 0.8,
                            .relative = true,
                            .rate_in_moment = moment == Moment::of_rated_steps,
                            .decay_last = decay_last};
        machine.run(op);
        const double ps[] = {1.5, -1, 2, 0}, us[] = {4, -2, 0, 1}, before[] = {0, 1, 0, 0};
        const double limit = dtype == DType::f64 ? 1e-14 : 1e-6;
        for (std::size_t i = 0; i < 4; ++i) {
          // 16^-0.5 is less than the decision's 1.
          const double rate = 0.1 * 0.25 * (i < 2 ? 0.5 / 2 : 0.125);
          const bool rated = moment == Moment::of_rated_steps;
          const double ms = 0.8 * before[i] + 0.2 * (rated ? rate * us[i] : us[i]);
          const double lost = moment == Moment::none ? rate * us[i] : rated ? ms : rate * ms;
          const double kept = 1 - 0.1 * 0.3;
          const double expected = decay_last ? (ps[i] - lost) * kept : ps[i] * kept - lost;
          CHECK(values_of(p)[i] == test::relative(expected, limit));
          if (moment != Moment::none) CHECK(values_of(m)[i] == test::relative(ms, limit));
        }
        // At the decision's own rate, as the step is; a relative one is at most that.
        op.relative = false;
        op.clip = {};
        op.parameter_squares = {};
        op.m = {};
        op.weight_decay = 0;
        const Values at = values_of(p);
        machine.run(op);
        for (std::size_t i = 0; i < 4; ++i) {
          CHECK(values_of(p)[i] == test::relative(at[i] - 0.1 * us[i], limit));
        }
        const Tensor small = machine.of({0, 1, 1, 1, 0.125, 1, 16, 1, 0, 1, 1, 0},
                                        {UpdateDecision::kScalars}, DType::f64);
        trial::set_values(p, at);
        op.decision = small;
        op.relative = true;
        machine.run(op);
        for (std::size_t i = 0; i < 4; ++i) {
          CHECK(values_of(p)[i] == test::relative(at[i] - 0.1 * 0.125 * us[i], limit));
        }
      }
    }
  }
}

TEST_CASE("CAME's moment is the formula, and the step what differs from it") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Tensor u = machine.of({4, -8, 1, 0.5}, {4}, dtype);
      const Tensor m = machine.of({1, 2, 0, -1}, {4}, dtype);
      const Tensor squares = machine.of({128, 2}, {2}, DType::f64);
      const Tensor decision = decision_of(machine, 0.5);
      // Of the first matrix RMS is 8, of the second 1.
      machine.run(CameMoment{.u = u,
                             .m = m,
                             .clip = {.squares = squares, .numel = 2, .threshold = 2},
                             .decision = decision,
                             .matrices = 2,
                             .beta1 = 0.75});
      const Values clipped{1, -2, 1, 0.5}, before{1, 2, 0, -1};
      for (std::size_t i = 0; i < 4; ++i) {
        const double moment = 0.75 * before[i] + 0.25 * clipped[i];
        CHECK(values_of(m)[i] == moment);
        CHECK(values_of(u)[i] == clipped[i] - moment);
      }
    }
  }
}

TEST_CASE("CAME's moments have the reference's bits") {
  for (const Run& run : kRuns) {
    CAPTURE(run.matrices);
    CAPTURE(run.each);
    trial::compare(
        [&](Machine& machine) {
          Case c(machine, run, Moment::of_steps);
          machine.run(CameMoment{.u = c.u,
                                 .m = c.m,
                                 .clip = c.update.clip,
                                 .decision = c.decision,
                                 .matrices = run.matrices});
          return trial::outputs(c.u, c.m);
        },
        DType::f32, kSameBits);
  }
}

TEST_CASE("updates by steps refuse operands that do not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor x = machine.operand("x", {6}), y = machine.operand("y", {6});
  const Tensor three = machine.operand("three", {3}), sums = machine.empty({3}, DType::f64);
  const Tensor decision = decision_of(machine, 1);
  const auto refused = [&](const auto& op, const auto& change) {
    op.check();
    auto changed = op;
    change(changed);
    CHECK_THROWS_AS(changed.check(), InternalError);
  };
  const MatrixStepUpdate step{.to = {x, y}, .u = y, .m = {}, .clip = {}, .decision = decision};
  refused(step, [&](auto& op) { op.u = three; });
  refused(step, [&](auto& op) { op.m = three; });
  refused(step, [&](auto& op) { op.matrices = 4; });
  refused(step, [&](auto& op) { op.clip.squares = sums; });
  refused(step, [&](auto& op) { op.parameter_squares = sums; });
  refused(step, [&](auto& op) { op.beta1 = 1; });
  const CameMoment came{.u = x, .m = y, .clip = {}, .decision = decision};
  refused(came, [&](auto& op) { op.m = three; });
  refused(came, [&](auto& op) { op.clip.threshold = 0; });
  refused(came, [&](auto& op) { op.matrices = 4; });
}

}  // namespace llmtrain::kernels
