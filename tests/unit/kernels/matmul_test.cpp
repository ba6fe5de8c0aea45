#include "kernels/matmul.hpp"

#include <doctest/doctest.h>

#include "kernels/activations.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

enum class Bias { none, narrow, wide };

struct Problem {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  bool wide_c = false;  // FP32 result of operands of half the width
  bool accumulate = false;
  Bias bias = Bias::none;
  std::int64_t gap = 0;
};

/// The operands of a problem; the tensors own what the kernel sees.
struct Operation {
  Tensor a, b, c, bias;
  Matmul kernel;

  Operation(Machine& machine, const Problem& p) {
    const auto stored = [](bool transposed, std::int64_t rows, std::int64_t cols) {
      return transposed ? Shape{cols, rows} : Shape{rows, cols};
    };
    a = machine.operand("a", stored(p.transpose_a, p.m, p.k), p.gap);
    b = machine.operand("b", stored(p.transpose_b, p.k, p.n), p.gap);
    const DType result = p.wide_c ? machine.sink() : machine.compute();
    const DType rounded = p.wide_c ? DType::f32 : machine.operand_dtype();
    c = p.accumulate ? machine.normals("c", {p.m, p.n}, result, rounded, p.gap)
                     : machine.empty({p.m, p.n}, result, p.gap);
    if (p.bias == Bias::narrow) bias = machine.normals("bias", {p.n}, result, rounded);
    if (p.bias == Bias::wide) bias = machine.wide("bias", {p.n});
    kernel = {a, b, c, bias, p.transpose_a, p.transpose_b, p.accumulate};
  }
};

std::vector<trial::Output> multiply(Machine& machine, const Problem& p) {
  Operation operation(machine, p);
  machine.run(operation.kernel);
  return trial::outputs(operation.c);
}

void compare(const Problem& p, DType dtype) {
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  CAPTURE(p.transpose_a);
  CAPTURE(p.transpose_b);
  CAPTURE(p.wide_c);
  CAPTURE(p.accumulate);
  // Sums of k products in FP32, even for bf16 and fp16, whose own rounding hides them.
  trial::Limits limits;
  limits.reference = 4 + static_cast<double>(p.k) / 16;
  trial::compare([&](Machine& machine) { return multiply(machine, p); }, dtype, limits);
}

}  // namespace

TEST_CASE("a fast product agrees with the reference in every form and dtype") {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                                {1, 7, 5},
                                {3, 1, 17},
                                {33, 65, 31},
                                {64, 48, 128},
                                {130, 100, 257}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          const Problem p{m, n, k, transpose_a, transpose_b, false, accumulate};
          compare(p, DType::f32);
          compare(p, DType::bf16);
          compare(p, DType::f16);
          Problem wide = p;
          wide.wide_c = true;
          wide.gap = 6;
          compare(wide, DType::bf16);
          compare(wide, DType::f16);
        }
      }
    }
  }
}

TEST_CASE("a bias is added once, in its own dtype, also to strided results") {
  for (const Bias bias : {Bias::narrow, Bias::wide}) {
    for (const bool wide_c : {false, true}) {
      const Problem p{19, 37, 23, false, true, wide_c, false, bias, 5};
      compare(p, DType::f32);
      compare(p, DType::bf16);
      compare(p, DType::f16);
    }
  }
}

TEST_CASE("a product without terms is zero or the bias, and empty results are left alone") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
      Machine machine(*table, dtype, DType::bf16, 2);
      CHECK(multiply(machine, {2, 3, 0})[0].values == Values(6, 0.0));
      CHECK(multiply(machine, {0, 3, 4})[0].values.empty());
      CHECK(multiply(machine, {3, 0, 4})[0].values.empty());
      Problem biased{2, 3, 0};
      biased.bias = Bias::narrow;
      Operation operation(machine, biased);
      machine.run(operation.kernel);
      const Values bias = values_of(operation.bias);
      Values expected = bias;
      expected.insert(expected.end(), bias.begin(), bias.end());
      CHECK(values_of(operation.c) == expected);
    }
  }
}

TEST_CASE("fp64 products are exact for small integers") {
  Machine machine(cpu_table(), DType::f64, DType::f64, 1);
  const Tensor a = machine.of({1, 2, 3, 4, 5, 6}, {2, 3}, DType::f64);
  const Tensor b = machine.of({1, 0, 2, -1, 1, 3}, {2, 3}, DType::f64);
  const Tensor c = machine.of({100, 0, 0, 0}, {2, 2}, DType::f64);
  machine.run(Matmul{a, b, c, {}, false, true, true});
  CHECK(values_of(c) == Values{107, 10, 16, 19});
}

TEST_CASE("the fast product leaves the gaps between strided rows alone") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Tensor whole = machine.empty({5, 12}, DType::f32);
  const Tensor a = machine.operand("a", {5, 4});
  const Tensor b = machine.operand("b", {4, 6});
  machine.run(Matmul{a, b, whole.columns(3, 6), {}});
  const Values values = values_of(whole);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool inside = i % 12 >= 3 && i % 12 < 9;
    CHECK((values[i] == Machine::kUntouched) == !inside);
  }
}

TEST_CASE("very long sums agree with the reference, with a bias and without") {
  compare({3, 5, 40000, false, true, false, false, Bias::wide}, DType::f32);
  compare({5, 3, 33000, true, false, true, true}, DType::bf16);
}

TEST_CASE("products repeat bit by bit") {
  const Problem p{65, 130, 300, true, false, true, true};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const trial::Trial trial = [&](Machine& machine) { return multiply(machine, p); };
    const auto first = trial::run(trial, cpu_table(), dtype, dtype, 2);
    for (int i = 0; i < 3; ++i) {
      const auto again = trial::run(trial, cpu_table(), dtype, dtype, 2);
      CHECK(trial::same_bits(again[0].values, first[0].values));
    }
  }
}

TEST_CASE("a product refuses operands that do not fit") {
  Machine machine(cpu_table(), DType::bf16, DType::bf16, 1);
  const Operation good(machine, {4, 6, 8});
  good.kernel.check();
  const auto refused = [&](const auto& change) {
    Matmul kernel = good.kernel;
    change(kernel);
    CHECK_THROWS_AS(kernel.check(), InternalError);
  };
  const Tensor other = machine.operand("other", {8, 8});
  const Tensor wide = machine.wide("wide", {8, 6});
  refused([&](Matmul& k) { k.b = other; });
  refused([&](Matmul& k) { k.b = wide; });
  refused([&](Matmul& k) { k.transpose_a = true; });
  refused([&](Matmul& k) { k.transpose_b = true; });
  refused([&](Matmul& k) { k.a = {}; });
  refused([&](Matmul& k) { k.c.row_stride = 5; });
  refused([&](Matmul& k) { k.bias = other; });
  refused([&](Matmul& k) { k.c.dtype = DType::f64; });
  refused([&](Matmul& k) {
    k.bias = good.b.view();
    k.bias.shape = {6};
    k.accumulate = true;
  });
  const Tensor square = machine.operand("square", {4, 4});
  CHECK_THROWS_AS((Matmul{square, square, square, {}}.check()), InternalError);
}

TEST_CASE("the cost of a product counts multiply-adds twice and each operand once") {
  Machine machine(cpu_table(), DType::bf16, DType::bf16, 1);
  Problem p{4, 6, 8};
  p.wide_c = true;
  p.accumulate = true;
  const Cost cost = Operation(machine, p).kernel.cost();
  CHECK(cost.flops == 2.0 * 4 * 6 * 8);
  CHECK(cost.bytes_read == (4 * 8 + 8 * 6) * 2 + 4 * 6 * 4);
  CHECK(cost.bytes_written == 4 * 6 * 4);
}

TEST_CASE("a column sum has the reference's bits whatever the threads") {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {64, 3}, {65, 17}, {200, 1030}, {0, 5}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(rows);
      trial::Limits limits;
      limits.reference = 300;  // 200 additions of values near 1
      limits.same_bits_as_reference = true;
      trial::compare(
          [&, rows = rows, cols = cols](Machine& machine) {
            const Tensor x = machine.operand("x", {rows, cols}, 3);
            const Tensor out = machine.wide("out", {cols});
            machine.run(ColumnSum{x, out});
            return trial::outputs(out);
          },
          dtype, limits);
    }
  }
}

TEST_CASE("a column sum refuses a sink of another size or dtype") {
  Machine machine(cpu_table(), DType::bf16, DType::bf16, 1);
  const Tensor x = machine.operand("x", {3, 4});
  ColumnSum{x, machine.wide("out", {4})}.check();
  CHECK_THROWS_AS((ColumnSum{x, machine.wide("out", {3})}.check()), InternalError);
  CHECK_THROWS_AS((ColumnSum{x, machine.operand("out", {4})}.check()), InternalError);
}

TEST_CASE("an epilogue is the product, then the activation's kernel, bit for bit") {
  constexpr auto kGelu = Activation::gelu_pytorch_tanh;
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t k : {40, 0}) {
        CAPTURE(k);
        Machine machine(*table, dtype, dtype, 2);
        const Operation up(
            machine, {.m = 9, .n = 21, .k = k, .transpose_b = true, .bias = Bias::wide, .gap = 4});
        const Tensor pre = machine.empty({9, 21}, dtype, 6), h = machine.empty({9, 21}, dtype);
        Matmul fused = up.kernel;
        fused.epilogue = ProductEpilogue::activate;
        fused.activation = kGelu;
        fused.pre = pre;
        fused.c = h;
        machine.run(fused);
        machine.run(up.kernel);
        const Tensor apart = machine.empty({9, 21}, dtype);
        machine.run(ActivationForward{.activation = kGelu, .x = up.c, .up = {}, .y = apart});
        CHECK(values_of(pre) == values_of(up.c));
        CHECK(values_of(h) == values_of(apart));

        const Operation down(machine, {.m = 9, .n = 21, .k = k});
        machine.run(down.kernel);
        machine.run(ActivationBackward{
            .activation = kGelu, .x = pre, .up = {}, .dy = down.c, .dx = apart, .dup = {}});
        Matmul derivative = down.kernel;
        derivative.epilogue = ProductEpilogue::differentiate;
        derivative.activation = kGelu;
        derivative.pre = pre;
        machine.run(derivative);
        CHECK(values_of(down.c) == values_of(apart));
      }
    }
  }
}

TEST_CASE("an epilogue's operands are checked") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Operation operation(machine, {.m = 4, .n = 4, .k = 4, .bias = Bias::narrow});
  const Tensor pre = machine.empty({4, 4}, DType::f32), narrow = machine.empty({4, 3}, DType::f32);
  const auto with = [&](auto change) {
    Matmul mm = operation.kernel;
    mm.epilogue = ProductEpilogue::activate;
    mm.pre = pre;
    change(mm);
    return mm;
  };
  CHECK_NOTHROW(with([](Matmul&) {}).check());
  for (const Matmul& wrong :
       {with([](Matmul& mm) { mm.pre = {}; }), with([&](Matmul& mm) { mm.pre = narrow; }),
        with([](Matmul& mm) { mm.pre = mm.c; }),
        with([](Matmul& mm) { mm.epilogue = ProductEpilogue::differentiate; }),
        with([](Matmul& mm) { mm.accumulate = true, mm.bias = {}; })}) {
    CHECK_THROWS_AS(wrong.check(), InternalError);
  }
}

}  // namespace llmtrain::kernels
