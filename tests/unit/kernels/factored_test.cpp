// Second moments of rows and columns, and updates of matrices: by hand, the fast kernels' bits,
// whatever the threads, and matrices of every shape.
#include "kernels/factored.hpp"

#include <doctest/doctest.h>

#include "kernels/block_moments.hpp"
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

constexpr Matrices kShapes[] = {{1, 1, 1},   {1, 1, 7},     {1, 7, 1},     {1, 5, 7},
                                {3, 40, 96}, {1, 129, 300}, {1, 300, 129}, {1, 1, 70'001},
                                {0, 3, 4},   {5, 3, 1},     {2, 1, 1030},  {2, 150, 1100}};

const Tensor kNone;

/// As `operand`, of numbers that roots and bounds may have.
Tensor positive(Machine& machine, std::string_view name, std::int64_t n) {
  const Tensor tensor = machine.operand(name, {n});
  Values values = values_of(tensor);
  for (double& x : values) x = static_cast<float>(x * x + 0x1p-10);
  trial::set_values(tensor, values);
  return tensor;
}

Tensor not_now(Machine& machine) {
  Values numbers(UpdateDecision::kScalars, 1.0);
  numbers[2] = 0;  // apply
  return machine.of(numbers, {UpdateDecision::kScalars}, DType::f64);
}

/// Absent where a matrix is a vector.
Tensor rows_of(Machine& machine, std::string_view name, const Matrices& shape) {
  return shape.rows == 1 ? kNone : positive(machine, name, shape.count * shape.rows);
}

}  // namespace

TEST_CASE("sums over rows, columns and masters are those of their formulas") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Tensor x = machine.of({1, -2, 3, 4, 5, -6, 7, 8, 0, 0.5, 2, 1}, {12}, dtype);
      const Tensor columns = machine.empty({4}, DType::f64), rows = machine.empty({4}, DType::f64);
      const Tensor whole = machine.empty({2}, DType::f64);
      machine.run(ColumnSquares{.x = x, .shape = {2, 3, 2}, .out = columns});
      CHECK(values_of(columns) == Values{1 + 9 + 25, 4 + 16 + 36, 49 + 0 + 4, 64 + 0.25 + 1});
      machine.run(RowTotals{.x = x, .out = rows});
      CHECK(values_of(rows) == Values{2, 3, 15, 3.5});
      machine.run(
          MasterSquares{.to = {.parameter = x, .gradient = x, .compute_copy = {}}, .out = whole});
      CHECK(values_of(whole) == Values{91, 118.25});
    }
  }
}

TEST_CASE("sums over rows and columns have the order of their contract") {
  // What is added to 1 one by one is lost, and what is added up before is not: four squares in a
  // column's second chunk; in a row two values of each lane but the first, of which those of lane
  // 128 are a tie.
  Values tall(132, 0x1p-27), wide(513, 0x1p-54);
  tall[0] = wide[0] = 1;
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Tensor column = machine.of(tall, {132}, dtype), row = machine.of(wide, {513}, dtype);
      const Tensor out = machine.empty({1}, DType::f64);
      machine.run(ColumnSquares{.x = column, .shape = {1, 132, 1}, .out = out});
      CHECK(values_of(out)[0] == 1 + 0x1p-52);
      machine.run(RowTotals{.x = row, .out = out});
      CHECK(values_of(out)[0] == 1 + 127 * 0x1p-52);
    }
  }
}

TEST_CASE("sums over matrices have the reference's bits") {
  for (const Matrices& shape : kShapes) {
    CAPTURE(shape.rows);
    CAPTURE(shape.columns);
    trial::compare(
        [&](Machine& machine) {
          const Tensor x = machine.operand("x", {shape.numel()});
          const Tensor columns = machine.empty({shape.count * shape.columns}, DType::f64);
          const Tensor totals = machine.empty({shape.count * shape.rows}, DType::f64);
          machine.run(ColumnSquares{.x = x, .shape = shape, .out = columns});
          machine.run(RowTotals{.x = x, .out = totals});
          return trial::outputs(columns, totals);
        },
        DType::f32, kSameBits);
  }
}

TEST_CASE("squares of masters in every form are those of blocks of their values") {
  for (const std::int64_t each : {1, 7, 1000, 16'384, 16'385, 70'001}) {
    for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
      for (const int threads : {1, 2, 3}) {
        CAPTURE(each);
        const std::int64_t count = 3, n = count * each;
        Machine machine(*table, DType::f32, DType::f32, threads);
        const Tensor p = machine.operand("p", {n}), g = machine.operand("g", {n});
        const Tensor high = machine.empty({n}, DType::bf16);
        const Tensor low =
            machine.integers(std::vector<std::uint16_t>(static_cast<std::size_t>(n)));
        for (std::int64_t i = 0; i < n; ++i) {
          const MasterParts parts = split_master(p.view().as<float>()[i]);
          high.view().as<bf16>()[i] = parts.copy;
          low.view().as<std::uint16_t>()[i] = parts.remainder;
        }
        const auto squares_of = [&](const UpdateOperands& to) {
          const Tensor out = machine.empty({count}, DType::f64);
          machine.run(MasterSquares{.to = to, .out = out});
          return values_of(out);
        };
        const auto squares_of_values = [&](const Tensor& values) {
          const Tensor out = machine.empty({count}, DType::f64);
          machine.run(BlockSquares{.g = values, .block = each, .out = out});
          return values_of(out);
        };
        const Values expected = squares_of_values(p);
        CHECK(squares_of({.parameter = p, .gradient = g, .compute_copy = high}) == expected);
        CHECK(
            squares_of({.parameter = {}, .gradient = g, .compute_copy = high, .remainder = low}) ==
            expected);
        const Tensor rounded = machine.of(values_of(high), {n}, DType::f32);
        CHECK(squares_of({.parameter = {}, .gradient = g, .compute_copy = high}) ==
              squares_of_values(rounded));
      }
    }
  }
}

TEST_CASE("a factored scale divides by the roots of both factors") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Tensor x = machine.of({1, -2, 3, 4, 5, -6, 7, 8}, {8}, dtype);
      const Tensor rows = machine.of({4, 1, 0.25, 16}, {4}, dtype);
      const Tensor columns = machine.of({1, 4, 16, 0.25}, {4}, dtype);
      const Tensor totals = machine.of({3, 48}, {2}, DType::f64);
      const Tensor y = machine.empty({8}, dtype), decision = decision_of(machine, 0.5);
      FactoredScale op{.x = x,
                       .rows = rows,
                       .totals = totals,
                       .columns = columns,
                       .shape = {2, 2, 2},
                       .all_rows = 3,
                       .decision = decision,
                       .y = y};
      machine.run(op);
      // Means are 1 and 16.
      const Values factors{0.5, 0.25, 1, 0.5, 2, 16, 0.25, 2};
      const Values xs = values_of(x);
      for (std::size_t i = 0; i < 8; ++i) CHECK(values_of(y)[i] == xs[i] * 0.5 * factors[i]);
      op.is_gradient = false;
      machine.run(op);
      for (std::size_t i = 0; i < 8; ++i) CHECK(values_of(y)[i] == xs[i] * factors[i]);
      // A vector has no factor of its row; y may be x.
      const Tensor four = machine.of({1, -2, 3, 4}, {4}, dtype);
      machine.run(FactoredScale{.x = four,
                                .rows = {},
                                .totals = {},
                                .columns = columns,
                                .shape = {1, 1, 4},
                                .decision = decision,
                                .y = four});
      CHECK(values_of(four) == Values{0.5, -0.5, 0.375, 4});
    }
  }
}

TEST_CASE("factored scales have the reference's bits, in place too") {
  for (const Matrices& shape : kShapes) {
    for (const bool in_place : {false, true}) {
      CAPTURE(shape.rows);
      CAPTURE(shape.columns);
      trial::compare(
          [&](Machine& machine) {
            const Tensor x = machine.operand("x", {shape.numel()});
            const Tensor y = in_place ? x : machine.output({shape.numel()});
            const Tensor rows = rows_of(machine, "rows", shape);
            const Tensor columns = positive(machine, "columns", shape.count * shape.columns);
            const Tensor totals = machine.empty({shape.count}, DType::f64);
            if (rows.defined()) machine.run(RowTotals{.x = rows, .out = totals});
            const Tensor decision = decision_of(machine, 0.7);
            machine.run(FactoredScale{.x = x,
                                      .rows = rows,
                                      .totals = totals,
                                      .columns = columns,
                                      .shape = shape,
                                      .all_rows = shape.rows + 2,
                                      .decision = decision,
                                      .y = y});
            return trial::outputs(y);
          },
          DType::f32, kSameBits);
    }
  }
}

TEST_CASE("covers rise to the largest sum of squares under them, and scale by its root") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Tensor g = machine.of({2, -4, 0, 6, 8, 2}, {6}, dtype);
      const Tensor rows = machine.of({4, 1}, {2}, dtype);
      const Tensor columns = machine.of({0.25, 8, 2}, {3}, dtype);
      const Tensor new_rows = machine.empty({2}, dtype), new_columns = machine.empty({3}, dtype);
      const Tensor decision = decision_of(machine, 0.5), u = machine.empty({6}, dtype);
      const Matrices shape{1, 2, 3};
      machine.run(CoverScale{.g = g,
                             .rows = rows,
                             .columns = columns,
                             .shape = shape,
                             .eps = 0.5,
                             .decision = decision,
                             .u = u});
      machine.run(CoverMaxima{.g = g,
                              .rows = rows,
                              .columns = columns,
                              .shape = shape,
                              .decision = decision,
                              .new_rows = new_rows,
                              .new_columns = new_columns});
      const Values sums{0.25 + 1, 4 + 4, 2, 0.25 + 9, 1 + 16, 1 + 1}, half{1, -2, 0, 3, 4, 1};
      CHECK(values_of(new_rows) == Values{8, 17});
      CHECK(values_of(new_columns) == Values{9.25, 17, 2});
      for (std::size_t i = 0; i < 6; ++i) {
        const double limit = dtype == DType::f64 ? 1e-15 : 2e-7;
        CHECK(values_of(u)[i] == test::relative(half[i] / std::sqrt(sums[i] + 0.5), limit));
      }
      // Of a vector there are bounds of the elements alone.
      const Tensor raised = machine.empty({3}, dtype);
      const Tensor vector = machine.of({2, -4, 0}, {3}, dtype);
      machine.run(CoverMaxima{.g = vector,
                              .rows = {},
                              .columns = columns,
                              .shape = {1, 1, 3},
                              .decision = decision,
                              .new_rows = {},
                              .new_columns = raised});
      CHECK(values_of(raised) == Values{1.25, 12, 2});
    }
  }
}

TEST_CASE("covers have the reference's bits") {
  for (const Matrices& shape : kShapes) {
    CAPTURE(shape.rows);
    CAPTURE(shape.columns);
    trial::compare(
        [&](Machine& machine) {
          const Tensor g = machine.operand("g", {shape.numel()});
          const Tensor rows = rows_of(machine, "rows", shape);
          const Tensor columns = positive(machine, "columns", shape.count * shape.columns);
          const Tensor u = machine.output({shape.numel()});
          const Tensor new_columns = machine.output({columns.numel()});
          const Tensor new_rows = rows.defined() ? machine.output({rows.numel()}) : kNone;
          const Tensor decision = decision_of(machine, 0.7);
          machine.run(CoverScale{.g = g,
                                 .rows = rows,
                                 .columns = columns,
                                 .shape = shape,
                                 .decision = decision,
                                 .u = u});
          machine.run(CoverMaxima{.g = g,
                                  .rows = rows,
                                  .columns = columns,
                                  .shape = shape,
                                  .decision = decision,
                                  .new_rows = new_rows,
                                  .new_columns = new_columns});
          return rows.defined() ? trial::outputs(u, new_columns, new_rows)
                                : trial::outputs(u, new_columns);
        },
        DType::f32, kSameBits);
  }
}

TEST_CASE("factored kernels touch nothing where the decision does not apply") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const Matrices shape{2, 8, 6};
      const Tensor x = machine.operand("x", {96}), u = machine.operand("u", {96});
      const Tensor m = machine.operand("m", {96}), rows = positive(machine, "rows", 16);
      const Tensor columns = positive(machine, "columns", 12), p = machine.operand("p", {96});
      const Tensor totals = machine.of({1, 2}, {2}, DType::f64), no = not_now(machine);
      const Tensor new_rows = machine.output({16}), new_columns = machine.output({12});
      const auto all = [&] { return trial::outputs(u, m, p, rows, columns); };
      const auto before = all();
      machine.run(FactoredScale{.x = x,
                                .rows = rows,
                                .totals = totals,
                                .columns = columns,
                                .shape = shape,
                                .all_rows = 8,
                                .decision = no,
                                .y = u});
      machine.run(CameMoment{.u = u, .m = m, .clip = {}, .decision = no});
      machine.run(MatrixStepUpdate{.to = {p, x}, .u = u, .m = m, .clip = {}, .decision = no});
      machine.run(CoverScale{
          .g = x, .rows = rows, .columns = columns, .shape = shape, .decision = no, .u = u});
      machine.run(CoverMaxima{.g = x,
                              .rows = rows,
                              .columns = columns,
                              .shape = shape,
                              .decision = no,
                              .new_rows = new_rows,
                              .new_columns = new_columns});
      const auto after = all();
      for (std::size_t i = 0; i < before.size(); ++i) {
        CHECK(trial::same_bits(after[i].values, before[i].values));
      }
      CHECK(values_of(new_rows) == values_of(rows));
      CHECK(values_of(new_columns) == values_of(columns));
    }
  }
}

TEST_CASE("factored kernels refuse operands that do not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor x = machine.operand("x", {6}), y = machine.output({6});
  const Tensor two = positive(machine, "rows", 2), three = positive(machine, "columns", 3);
  const Tensor raised_two = machine.output({2}), raised_three = machine.output({3});
  const Tensor one_sum = machine.empty({1}, DType::f64), sums = machine.empty({3}, DType::f64);
  const Tensor decision = decision_of(machine, 1);
  const Matrices shape{1, 2, 3};
  const auto refused = [&](const auto& op, const auto& change) {
    op.check();
    auto changed = op;
    change(changed);
    CHECK_THROWS_AS(changed.check(), InternalError);
  };
  const ColumnSquares columns{.x = x, .shape = shape, .out = sums};
  refused(columns, [&](auto& op) { op.shape.rows = 3; });
  refused(columns, [&](auto& op) { op.out = three; });
  const RowTotals totals{.x = x, .out = sums};
  refused(totals, [&](auto& op) { op.x = raised_two; });
  refused(totals, [&](auto& op) { op.out = three; });
  const MasterSquares masters{.to = {x, y}, .out = sums};
  refused(masters, [&](auto& op) { op.to.gradient = two; });
  refused(masters, [&](auto& op) { op.out = decision; });
  const FactoredScale scale{.x = x,
                            .rows = two,
                            .totals = one_sum,
                            .columns = three,
                            .shape = shape,
                            .all_rows = 2,
                            .decision = decision,
                            .y = y};
  refused(scale, [&](auto& op) { op.rows = {}; });
  refused(scale, [&](auto& op) { op.rows = three; });
  refused(scale, [&](auto& op) { op.totals = sums; });
  refused(scale, [&](auto& op) { op.all_rows = 1; });
  refused(scale, [&](auto& op) { op.y = three; });
  refused(scale, [&](auto& op) { op.decision = {}; });
  const CoverMaxima maxima{.g = x,
                           .rows = two,
                           .columns = three,
                           .shape = shape,
                           .decision = decision,
                           .new_rows = raised_two,
                           .new_columns = raised_three};
  refused(maxima, [&](auto& op) { op.rows = {}; });
  refused(maxima, [&](auto& op) { op.new_rows = {}; });
  refused(maxima, [&](auto& op) { op.new_rows = two; });
  refused(maxima, [&](auto& op) { op.new_columns = three; });
  const CoverScale cover{
      .g = x, .rows = two, .columns = three, .shape = shape, .decision = decision, .u = y};
  refused(cover, [&](auto& op) { op.columns = two; });
  refused(cover, [&](auto& op) { op.u = sums; });
}

}  // namespace llmtrain::kernels
