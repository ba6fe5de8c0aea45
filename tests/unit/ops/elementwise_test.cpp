#include <cmath>

#include <doctest/doctest.h>

#include "kernels/activations.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::test {

namespace {

using Unary = std::function<Var(const OpCtx&, std::span<const Var>)>;

Problem on_inputs(std::vector<Shape> inputs, Unary f, RowLayout rows = {.length = 6}) {
  return {.rows = std::move(rows), .inputs = std::move(inputs), .build = [f](Place&) -> Forward {
            return
                [f](const OpCtx& ctx, std::span<const Var> x) -> Outputs { return {{f(ctx, x)}}; };
          }};
}

}  // namespace

TEST_CASE("a sum passes its gradient to both sides") {
  check_operation(on_inputs({{6, 5}, {6, 5}}, [](const OpCtx& ctx, std::span<const Var> x) {
    return ops::add(ctx, x[0], x[1]);
  }));
}

TEST_CASE("a scaled value scales its gradient") {
  check_operation(on_inputs({{6, 5}}, [](const OpCtx& ctx, std::span<const Var> x) {
    return ops::scale(ctx, x[0], -2.5);
  }));
  Place place({.length = 1}, {.compute = DType::bf16});
  const Var x{place.tensor({1, 2}, {1, 2}), -1, nullptr};
  // The root of 2304 is 48; that of 20 becomes a bf16 first.
  CHECK(values_of(ops::scale(place.context(), x, 48).tensor) == std::vector<double>{48, 96});
  CHECK(values_of(ops::scale(place.context(), x, std::sqrt(20.0)).tensor) ==
        std::vector<double>{4.46875, 8.9375});
}

TEST_CASE("a value used several times collects all gradients") {
  check_operation(on_inputs({{6, 5}, {6, 5}}, [](const OpCtx& ctx, std::span<const Var> x) {
    const Var twice = ops::add(ctx, x[0], x[0]);
    const Var f = ops::activation(ctx, x[0], kernels::Activation::silu);
    const Var both = ops::add(ctx, ops::add(ctx, twice, f), x[1]);
    return ops::add(ctx, ops::add(ctx, both, x[0]), both);
  }));
}

TEST_CASE("every activation function differentiates, plain and gated") {
  for (int i = 0; i < kernels::kNumActivations; ++i) {
    const auto f = static_cast<kernels::Activation>(i);
    CAPTURE(kernels::to_string(f));
    check_operation(on_inputs({{6, 5}}, [f](const OpCtx& ctx, std::span<const Var> x) {
      return ops::activation(ctx, x[0], f);
    }));
    check_operation(on_inputs({{6, 10}}, [f](const OpCtx& ctx, std::span<const Var> x) {
      return ops::gated_activation(ctx, x[0], f);
    }));
  }
}

TEST_CASE("the backward of dropout uses the mask of its forward") {
  check_operation(on_inputs(
      {{6, 16}},
      [](const OpCtx& ctx, std::span<const Var> x) { return ops::dropout(ctx, x[0], 0.4, "here"); },
      {.sequences = 2, .length = 3}));
}

TEST_CASE("dropout keeps the mean and is a function of its name, step and global row") {
  Place place({.sequences = 4, .length = 64}, {});
  const std::vector<double> ones(256 * 64, 1);
  const auto drop = [&](std::string_view name, std::uint64_t step) {
    OpCtx ctx = place.context();
    ctx.step.step = step;
    const Var y = ops::dropout(ctx, {place.tensor(ones, {256, 64}), -1, nullptr}, 0.25, name);
    std::vector<double> values(ones.size());
    place.device().copy_to_host(std::as_writable_bytes(std::span(values)), y.tensor);
    return values;
  };
  const std::vector<double> y = drop("a", 1);
  double sum = 0;
  for (const double v : y) {
    CHECK_UNARY(v == 0 || v == test::relative(4.0 / 3, 1e-12));
    sum += v;
  }
  CHECK(sum / static_cast<double>(y.size()) == test::relative(1, 0.02));
  CHECK(y == drop("a", 1));
  CHECK(y != drop("b", 1));
  CHECK(y != drop("a", 2));
  CHECK(std::vector(y.begin(), y.begin() + 64) != std::vector(y.begin() + 64, y.begin() + 128));
}

TEST_CASE("dropout of probability 0 or outside training is the value itself") {
  Place place({.length = 2}, {});
  const Var x{place.tensor({1, 2}, {2, 1}), -1, nullptr};
  OpCtx ctx = place.context();
  CHECK(ops::dropout(ctx, x, 0, "here").tensor.view().data == x.tensor.view().data);
  ctx.training = false;
  CHECK(ops::dropout(ctx, x, 0.5, "here").tensor.view().data == x.tensor.view().data);
}

}  // namespace llmtrain::test
