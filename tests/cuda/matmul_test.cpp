#include "kernels/matmul.hpp"

#include <cmath>

#include "kernels/activations.hpp"
#include "tests/cuda/matmul_case.hpp"
#include "tests/cuda/skip.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

double mean_square(const Values& values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// The terms of a sum may cancel, but each addition rounds what has come together so far: in units
/// of the result's rounding, of which wider sums have less.
double rounded_on_the_way(Machine& machine, const Operation& operation, std::int64_t k) {
  const double terms = static_cast<double>(k) * std::sqrt(mean_square(machine.read(operation.a)) *
                                                          mean_square(machine.read(operation.b)));
  return terms * test::rounding_of(machine.wide()) / test::rounding_of(operation.c.dtype());
}

void compare_here(const Problem& p, DType dtype) {
  CAPTURE(p.m);
  CAPTURE(p.n);
  CAPTURE(p.k);
  CAPTURE(p.transpose_a);
  CAPTURE(p.transpose_b);
  CAPTURE(p.wide_c);
  CAPTURE(p.accumulate);
  CAPTURE(p.gap);
  // A few sums of many are further off than the reference's worst, which is of another order.
  compare(
      [&](Machine& machine) {
        const Operation operation(machine, p);
        run(machine, p, operation);
        std::vector<Output> all = outputs(machine, operation.c);
        all[0].of_magnitude = rounded_on_the_way(machine, operation, p.k);
        return all;
      },
      dtype, {.times_reference = 3, .floor = 4});
}

/// As compare_here, and the fake library must have multiplied, or not at all: its choice changes
/// with the rows of a product, which `layout` does not allow.
void compare_in(Mode mode, const Problem& p, DType dtype) {
  const InMode in(mode);
  const std::int64_t before = in.possible() ? products_queued() : 0;
  compare_here(p, dtype);
  const bool taken =
      mode != Mode::refuses && dtype != DType::f64 && p.determinism != Determinism::layout;
  if (in.possible()) CHECK(products_queued() - before == (taken ? 2 : 0));
}

/// By the library and by ourselves.
void compare_both(const Problem& p, DType dtype) {
  compare_in(Mode::takes, p, dtype);
  if (fake_library() != nullptr && dtype != DType::f64) compare_in(Mode::refuses, p, dtype);
}

/// In every dtype of operands and result.
void compare_all(Problem p) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    compare_both(p, dtype);
  p.wide_c = true;
  for (const DType dtype : {DType::bf16, DType::f16}) compare_both(p, dtype);
}

}  // namespace

TEST_CASE("a product agrees with the reference in every form and dtype") {
  for (const auto& [m, n, k, gap] : {std::array<std::int64_t, 4>{1, 1, 1, 0},
                                     {1, 7, 5, 2},
                                     {3, 1, 17, 0},
                                     {24, 40, 32, 8},
                                     {65, 33, 31, 6}}) {
    for (int form = 0; form < 8; ++form) {
      Problem p{m, n, k, (form & 1) != 0, (form & 2) != 0, false, (form & 4) != 0};
      p.gap = gap;
      compare_all(p);
    }
  }
}

TEST_CASE("products of many tiles and of long sums") {
  for (const bool transpose : {false, true}) {
    compare_all({200, 150, 70, transpose, !transpose});
    compare_all({40, 16, 530, transpose, transpose, false, true});
  }
  // More rows of tiles than one group has, and a group that is not full.
  compare_both({600, 70, 9}, DType::f64);
}

TEST_CASE("a bias is added once, whatever its dtype and address") {
  for (const Bias bias : {Bias::narrow, Bias::wide}) {
    for (const std::int64_t bias_gap : {0, 3}) {
      Problem p{19, 37, 23, false, true, false, false, bias, 5, bias_gap};
      compare_all(p);
      p.transpose_a = true;
      compare_all(p);
    }
  }
}

TEST_CASE("the library multiplies fp32, bf16 and fp16, and ours what it does not take") {
  const InMode takes(Mode::takes);
  if (skip_if(!takes.possible(), kStandInAlone)) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Machine machine = gpu_machine(dtype);
    const Problem p{16, 8, 24};
    const Operation operation(machine, p);
    const std::int64_t before = products_queued();
    const std::int64_t asked = fake_library()->heuristics;
    for (int i = 0; i < 3; ++i) run(machine, p, operation);
    CHECK(products_queued() - before == (dtype == DType::f64 ? 0 : 3));
    // Algorithms are asked for once per shape.
    CHECK(fake_library()->heuristics - asked == (dtype == DType::f64 ? 0 : 1));
  }
}

TEST_CASE("TF32 rounds operands of fp32 products, and of no others") {
  const InMode takes(Mode::takes);
  if (skip_if(!takes.possible(), kStandInAlone)) return;
  const auto product = [](DType dtype, bool tf32) {
    Machine machine = gpu_machine(dtype);
    const Operation operation(machine, {24, 40, 64, false, true, false, false, Bias::narrow});
    KernelCtx ctx = machine.ctx();
    ctx.tf32 = tf32;
    launch(ctx, operation.kernel);
    return machine.read(operation.c);
  };
  CHECK(product(DType::f64, true) == product(DType::f64, false));
  const std::int64_t before = products_queued();
  CHECK(product(DType::bf16, true) == product(DType::bf16, false));
  CHECK(products_queued() - before == 2);  // the library takes no other type for TF32
  const Values plain = product(DType::f32, false), rounded = product(DType::f32, true);
  const double error = max_difference(plain, rounded) / max_magnitude(plain);
  CHECK(error > 0x1p-15);  // as of fp32: 2^-22
  CHECK(error < 0x1p-10);  // as of bf16: 2^-8
}

namespace {

/// A product with GELU behind it, and one with its derivative: what is kept between the two lies
/// `pre_gap` elements further apart than its rows are long, operands and results `gap`.
struct GeluCase {
  Activation f = Activation::gelu_pytorch_tanh;
  std::int64_t n = 32;
  Bias bias = Bias::narrow;
  std::int64_t pre_gap = 0, gap = 0;
};

std::vector<Output> gelu_outputs(Machine& machine, const GeluCase& c) {
  const Operation up(machine, {11, c.n, 24, false, true, false, false, c.bias, c.gap});
  const Tensor pre = machine.output({11, c.n}, c.pre_gap);
  Matmul activate = up.kernel;
  activate.epilogue = ProductEpilogue::activate;
  activate.activation = c.f;
  activate.pre = pre;
  machine.run(activate);
  Problem back{11, c.n, 40};
  back.gap = c.gap;
  const Operation down(machine, back);
  const Tensor z = machine.operand("z", {11, c.n}, c.pre_gap);
  Matmul differentiate = down.kernel;
  differentiate.epilogue = ProductEpilogue::differentiate;
  differentiate.activation = c.f;
  differentiate.pre = z;
  machine.run(differentiate);
  return outputs(machine, pre, up.c, down.c);
}

void compare_gelu(const GeluCase& c, DType dtype) {
  CAPTURE(c.n);
  CAPTURE(c.pre_gap);
  CAPTURE(c.gap);
  compare([&](Machine& machine) { return gelu_outputs(machine, c); }, dtype,
          {.times_reference = 3, .floor = 4});
}

}  // namespace

TEST_CASE("GELU and its derivative in the epilogue, or behind products that have none") {
  for (const Mode mode : {Mode::takes, Mode::refuses, Mode::fickle}) {
    const InMode in(mode);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const Bias bias : {Bias::none, Bias::narrow, Bias::wide}) {
        compare_gelu({.bias = bias}, dtype);
      }
      // What is kept has strides of its own, at 16 bytes and elsewhere.
      compare_gelu({.pre_gap = 16}, dtype);
      compare_gelu({.gap = 16}, dtype);
      compare_gelu({.pre_gap = 6, .gap = 16}, dtype);
      // Strides that the library does not take, and a function that it has not.
      compare_gelu({.n = 29}, dtype);
      compare_gelu({.f = Activation::silu}, dtype);
    }
  }
  const InMode takes(Mode::takes);
  if (!takes.possible()) return;
  const auto epilogue_after = [&](const GeluCase& c, DType dtype = DType::bf16) {
    Machine machine = gpu_machine(dtype);
    gelu_outputs(machine, c);
    return fake_library()->epilogue;
  };
  CHECK(epilogue_after({}) == 192);
  CHECK(epilogue_after({}, DType::f16) == 192);
  CHECK(epilogue_after({.pre_gap = 16}) == 192);
  CHECK(epilogue_after({.gap = 16}) == 192);
  // Nor is it asked for what it is known not to take.
  const std::int64_t asked = fake_library()->heuristics;
  CHECK(epilogue_after({.n = 29}) == 1);
  CHECK(fake_library()->heuristics - asked == 2);
  CHECK(epilogue_after({}, DType::f32) == 1);
  CHECK(epilogue_after({.f = Activation::silu}) == 1);
}

TEST_CASE("each operand's alignment is its own") {
  // Strides are multiples of 16 bytes, addresses of 8 or of 256.
  for (int odd = 0; odd < 4; ++odd) {
    compare(
        [&](Machine& machine) {
          const Tensor a = machine.operand("a", {16, 32}, (odd & 1) * 8);
          const Tensor b = machine.operand("b", {16, 32}, (odd & 2) * 4);
          const Tensor c = machine.output({16, 16});
          machine.run(Matmul{.a = a, .b = b, .c = c, .bias = {}, .transpose_b = true});
          return outputs(machine, c);
        },
        DType::bf16, {.times_reference = 3, .floor = 4});
  }
}

TEST_CASE("products of one shape each have their own operands") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare(
        [&](Machine& machine) {
          const Tensor x = machine.operand("x", {8, 16});
          std::vector<Tensor> ys, biases;  // kept: their addresses are not used again
          for (const std::string_view layer : {"one", "two"}) {
            const Tensor w = machine.operand(layer, {24, 16});
            biases.push_back(machine.normals(layer, {24}, machine.compute(), dtype));
            ys.push_back(machine.output({8, 24}));
            machine.run(
                Matmul{.a = x, .b = w, .c = ys.back(), .bias = biases.back(), .transpose_b = true});
          }
          return outputs(machine, ys[0], ys[1]);
        },
        dtype, {.times_reference = 3, .floor = 4});
  }
}

TEST_CASE("an algorithm that the library then refuses is followed by the next") {
  compare_in(Mode::fickle, {24, 40, 32, false, true, false, false, Bias::narrow}, DType::bf16);
  compare_in(Mode::fickle, {24, 40, 32, true, false, true, true}, DType::bf16);
}

TEST_CASE("products hold under every determinism and with little workspace") {
  for (const Determinism determinism : {Determinism::fast, Determinism::run, Determinism::layout}) {
    Problem p{24, 40, 64, true, false, true, true};
    p.determinism = determinism;
    compare_in(Mode::takes, p, DType::bf16);
    p.wide_c = false;
    compare_in(Mode::takes, p, DType::bf16);
    compare_in(Mode::takes, p, DType::f32);
    if (fake_library() != nullptr) CHECK(fake_library()->reduction != 0);
  }
  for (const std::uint64_t bytes : {0, 1, 300, 1024, 70 << 10}) {
    CAPTURE(bytes);
    for (const Bias bias : {Bias::none, Bias::narrow, Bias::wide}) {
      const Problem p{24, 40, 64, false, true, false, false, bias};
      const auto on = [&](Place place, std::uint64_t workspace_bytes) {
        Machine machine(place, DType::bf16, DType::bf16);
        const Operation operation(machine, p);
        KernelCtx ctx = machine.ctx();
        ctx.library_workspace_bytes = workspace_bytes;
        launch(ctx, operation.kernel);
        return machine.read(operation.c);
      };
      const Values expected = on(Place::reference, 0), found = on(Place::gpu, bytes);
      CHECK(max_difference(expected, found) <= 0x1p-7 * max_magnitude(expected));
    }
  }
}

TEST_CASE("a product without terms is zero or the bias, and empty results are left alone") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Machine machine = gpu_machine(dtype);
    const auto product = [&](const Problem& p) {
      const Operation operation(machine, p);
      run(machine, p, operation);
      return machine.read(operation.c);
    };
    CHECK(product({2, 3, 0}) == Values(6, 0.0));
    CHECK(product({0, 3, 4}).empty());
    CHECK(product({3, 0, 4}).empty());
    Problem biased{2, 3, 0};
    biased.bias = Bias::narrow;
    const Operation operation(machine, biased);
    run(machine, biased, operation);
    const Values bias = machine.read(operation.bias);
    Values expected = bias;
    expected.insert(expected.end(), bias.begin(), bias.end());
    CHECK(machine.read(operation.c) == expected);
    Problem more{2, 3, 0};
    more.accumulate = true;
    const Operation same(machine, more);
    const Values before = machine.read(same.c);
    run(machine, more, same);
    CHECK(machine.read(same.c) == before);
  }
}

TEST_CASE("products of small integers are exact") {
  const Values a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 2, -1, 1, 3}, c = {100, 0, 0, 0};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Machine machine = gpu_machine(dtype);
    const Tensor x = machine.of(a, {2, 3}, dtype), y = machine.of(b, {2, 3}, dtype);
    const Tensor z = machine.of(c, {2, 2}, dtype);
    machine.run(Matmul{x, y, z, {}, false, true, true});
    CHECK(machine.read(z) == Values{107, 10, 16, 19});
  }
}

TEST_CASE("a product leaves the gaps between strided rows alone, and NaN stays NaN") {
  for (const Mode mode : {Mode::takes, Mode::refuses}) {
    const InMode in(mode);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Machine machine = gpu_machine(dtype);
      const Tensor whole = machine.empty({5, 12}, dtype);
      const Tensor a = machine.of({1, NAN, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 2}, dtype);
      const Tensor b = machine.operand("b", {2, 6});
      machine.run(Matmul{a, b, whole.columns(3, 6), {}});
      const Values values = machine.read(whole);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool number = i >= 12 && i % 12 >= 3 && i % 12 < 9;
        CHECK(std::isnan(values[i]) == !number);
      }
    }
  }
}
