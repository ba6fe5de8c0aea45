#include "kernels/norm.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

constexpr NormKind kKinds[] = {NormKind::layer_norm, NormKind::rms_norm};
using Size = std::pair<std::int64_t, std::int64_t>;
constexpr Size kSizes[] = {{0, 5}, {1, 3}, {3, 7}, {5, 16}, {66, 33}, {130, 300}, {70, 1027}};

struct Options {
  NormKind kind = NormKind::rms_norm;
  bool residual = true;
  bool bias = true;
  bool wide_weight = false;
};

Tensor weight_of(Machine& machine, std::string_view name, std::int64_t cols, bool wide) {
  return wide ? machine.wide(name, {cols}) : machine.operand(name, {cols});
}

/// Forward, then both gradients from given dy and dsum.
std::vector<trial::Output> forward_and_backward(Machine& machine, const Size& size,
                                                const Options& o) {
  const auto [rows, cols] = size;
  const Shape shape{rows, cols};
  const bool centred = o.kind == NormKind::layer_norm;
  const Tensor x = machine.operand("x", shape);
  const Tensor residual = o.residual ? machine.operand("residual", shape) : Tensor();
  const Tensor sum = o.residual ? machine.output(shape) : Tensor();
  const Tensor weight = weight_of(machine, "weight", cols, o.wide_weight);
  const Tensor bias = o.bias ? weight_of(machine, "bias", cols, o.wide_weight) : Tensor();
  const Tensor y = machine.output(shape);
  const Tensor mean = centred ? machine.empty({rows}, machine.sink()) : Tensor();
  const Tensor rstd = machine.empty({rows}, machine.sink());
  machine.run(NormForward{o.kind, x, residual, sum, weight, bias, y, mean, rstd, 1e-5});

  const Tensor s = o.residual ? sum : x;
  const Tensor dy = machine.operand("dy", shape);
  const Tensor dsum = o.residual ? machine.operand("dsum", shape) : Tensor();
  const Tensor dx = machine.output(shape);
  const Tensor dweight = machine.wide("dweight", {cols});
  const Tensor dbias = o.bias ? machine.wide("dbias", {cols}) : Tensor();
  machine.run(NormBackward{o.kind, dy, dsum, s, weight, mean, rstd, dx, dweight, dbias});

  auto all = trial::outputs(s, y, rstd, dx, dweight);
  if (centred) all.push_back(trial::outputs(mean)[0]);
  if (o.bias) all.push_back(trial::outputs(dbias)[0]);
  return all;
}

}  // namespace

TEST_CASE("norms and their gradients agree with the reference and do not depend on threads") {
  for (const NormKind kind : kKinds) {
    for (const Size& size : kSizes) {
      for (const bool residual : {false, true}) {
        for (const bool wide_weight : {false, true}) {
          CAPTURE(size.first);
          CAPTURE(size.second);
          const Options options{kind, residual, residual, wide_weight};
          const trial::Trial trial = [&](Machine& machine) {
            return forward_and_backward(machine, size, options);
          };
          trial::Limits limits;
          limits.reference = 100;
          limits.fast = 3;
          trial::compare(trial, DType::f32, limits);
          if (!residual) trial::compare(trial, DType::bf16, limits);
          if (!residual) trial::compare(trial, DType::f16, limits);
        }
      }
    }
  }
}

TEST_CASE("heads side by side are normalised as rows of their own") {
  for (const auto& [rows, heads, head_dim] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{0, 2, 4},
        {3, 1, 5},
        {7, 3, 14},
        {65, 4, 64},
        {130, 2, 128}}) {
    for (const NormKind kind : kKinds) {
      CAPTURE(rows);
      CAPTURE(heads);
      CAPTURE(head_dim);
      const std::int64_t width = heads * head_dim;
      const trial::Trial trial = [&](Machine& machine) {
        const bool centred = kind == NormKind::layer_norm;
        const Tensor x = machine.operand("x", {rows, width}, 3);
        const Tensor dy = machine.operand("dy", {rows, width}, 5);
        const Tensor weight = machine.operand("weight", {head_dim});
        const Tensor y = machine.output({rows, width}, 1);
        const Tensor dx = machine.output({rows, width}, 4);
        const Tensor mean = centred ? machine.empty({rows * heads}, machine.sink()) : Tensor();
        const Tensor rstd = machine.empty({rows * heads}, machine.sink());
        const Tensor dweight = machine.wide("dweight", {head_dim});
        machine.run(NormForward{.kind = kind,
                                .x = x,
                                .residual = {},
                                .sum = {},
                                .weight = weight,
                                .bias = {},
                                .y = y,
                                .mean = mean,
                                .rstd = rstd,
                                .eps = 1e-5,
                                .head_dim = head_dim});
        machine.run(NormBackward{.kind = kind,
                                 .dy = dy,
                                 .dsum = {},
                                 .s = x,
                                 .weight = weight,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dweight = dweight,
                                 .dbias = {},
                                 .head_dim = head_dim});
        return trial::outputs(y, rstd, dx, dweight);
      };
      trial::Limits limits;
      limits.reference = 100;
      limits.fast = 3;
      trial::compare(trial, DType::f32, limits);
      trial::compare(trial, DType::bf16, limits);
      trial::compare(trial, DType::f16, limits);
    }
  }
}

TEST_CASE("bf16 norms with a residual normalise the rounded sum") {
  const Options options{NormKind::layer_norm, true, true, true};
  const trial::Trial trial = [&](Machine& machine) {
    return forward_and_backward(machine, {9, 130}, options);
  };
  const auto plain = trial::run(trial, cpu_reference_table(), DType::bf16, DType::bf16, 1);
  const auto fast = trial::run(trial, cpu_table(), DType::bf16, DType::bf16, 3);
  CHECK(trial::same_bits(fast[0].values, plain[0].values));
  for (std::size_t i = 1; i < plain.size(); ++i) {
    const double unit = plain[i].eps * trial::max_magnitude(plain[i].values);
    CHECK(trial::max_difference(fast[i].values, plain[i].values) <= 16 * unit);
  }
}

TEST_CASE("norm gradients are the derivatives of the forward pass") {
  constexpr std::int64_t kCols = 5;
  for (const NormKind kind : kKinds) {
    Machine machine(cpu_reference_table(), DType::f64, DType::f64, 1);
    const bool centred = kind == NormKind::layer_norm;
    const Tensor x = machine.operand("x", {2, kCols});
    const Tensor weight = machine.operand("weight", {kCols});
    const Tensor bias = machine.operand("bias", {kCols});
    const Tensor y = machine.output({2, kCols});
    const Tensor mean = centred ? machine.output({2}) : Tensor();
    const Tensor rstd = machine.output({2});
    const Tensor dy = machine.operand("dy", {2, kCols});
    const Tensor dsum = machine.operand("dsum", {2, kCols});
    // loss = dy . y + dsum . x
    const auto loss = [&] {
      machine.run(NormForward{kind, x, {}, {}, weight, bias, y, mean, rstd, 1e-3});
      double sum = 0;
      for (std::size_t i = 0; i < 2 * kCols; ++i) {
        sum += values_of(dy)[i] * values_of(y)[i] + values_of(dsum)[i] * values_of(x)[i];
      }
      return sum;
    };
    loss();
    const Tensor dx = machine.output({2, kCols});
    const Tensor dweight = machine.of(Values(kCols, 0.0), {kCols}, DType::f64);
    const Tensor dbias = machine.of(Values(kCols, 0.0), {kCols}, DType::f64);
    machine.run(NormBackward{kind, dy, dsum, x, weight, mean, rstd, dx, dweight, dbias});
    const auto check = [&](const Tensor& input, const Tensor& gradient) {
      for (std::int64_t i = 0; i < input.numel(); ++i) {
        constexpr double kStep = 1e-5;
        double& value = input.view().as<double>()[i];
        const double saved = value;
        value = saved + kStep;
        const double above = loss();
        value = saved - kStep;
        const double below = loss();
        value = saved;
        const double expected = (above - below) / (2 * kStep);
        CHECK(gradient.view().as<double>()[i] == test::relative(expected, 1e-7));
      }
    };
    check(x, dx);
    check(weight, dweight);
    check(bias, dbias);
  }
}

TEST_CASE("norms may overwrite what their headers allow") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 2);
    const Shape shape{4, 37};
    const Tensor x = machine.operand("x", shape);
    const Tensor weight = machine.operand("weight", {37});
    const Tensor rstd = machine.empty({4}, DType::f32);
    const Tensor sum = machine.output(shape);
    const Tensor y = machine.output(shape);
    const auto forward = [&](const Tensor& residual, const Tensor& into) {
      machine.run(
          NormForward{NormKind::rms_norm, x, residual, into, weight, {}, y, {}, rstd, 1e-5});
      return values_of(y);
    };
    const Tensor residual = machine.operand("residual", shape);
    const Values apart = forward(residual, sum);
    CHECK(forward(residual, residual) == apart);
    CHECK(values_of(residual) == values_of(sum));

    const Tensor dy = machine.operand("dy", shape);
    const Tensor dsum = machine.operand("dsum", shape);
    const Tensor dx = machine.output(shape);
    // dx and the weight's gradient.
    const auto backward = [&](const Tensor& into) {
      const Tensor dweight = machine.wide("dweight", {37});
      machine.run(
          NormBackward{NormKind::rms_norm, dy, dsum, sum, weight, {}, rstd, into, dweight, {}});
      return std::pair(values_of(into), values_of(dweight));
    };
    const auto expected = backward(dx);
    const Values dy_before = values_of(dy);
    CHECK(backward(dy) == expected);
    trial::set_values(dy, dy_before);
    CHECK(backward(dsum) == expected);
  }
}

TEST_CASE("weight gradients have the reference's bits") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const NormKind kind : kKinds) {
      trial::Limits limits;
      limits.reference = 1000;
      limits.same_bits_as_reference = true;
      trial::compare(
          [&](Machine& machine) {
            const Tensor dy = machine.operand("dy", {200, 77});
            const Tensor s = machine.operand("s", {200, 77});
            const bool centred = kind == NormKind::layer_norm;
            const Tensor mean = centred ? machine.wide("mean", {200}) : Tensor();
            const Tensor rstd = machine.wide("rstd", {200});
            const Tensor dweight = machine.wide("dweight", {77});
            const Tensor dbias = machine.wide("dbias", {77});
            const Tensor weight = machine.operand("weight", {77}), dx = machine.output({200, 77});
            machine.run(NormBackward{kind, dy, {}, s, weight, mean, rstd, dx, dweight, dbias});
            return trial::outputs(dweight, dbias);
          },
          dtype, limits);
    }
  }
}

TEST_CASE("norms refuse operands that do not fit") {
  Machine machine(cpu_table(), DType::bf16, DType::bf16, 1);
  const Tensor x = machine.operand("x", {3, 8});
  const Tensor other = machine.operand("other", {3, 7});
  const Tensor weight = machine.operand("weight", {8});
  const Tensor mean = machine.wide("mean", {3});
  const Tensor y = machine.output({3, 8});
  const NormForward forward{NormKind::layer_norm, x, {}, {}, weight, {}, y, mean, mean, 1e-5};
  forward.check();
  const auto refused = [](auto kernel, const auto& change) {
    change(kernel);
    CHECK_THROWS_AS(kernel.check(), InternalError);
  };
  refused(forward, [&](NormForward& k) { k.mean = {}; });
  refused(forward, [&](NormForward& k) { k.kind = NormKind::rms_norm; });
  refused(forward, [&](NormForward& k) { k.residual = x; });
  refused(forward, [&](NormForward& k) { k.sum = x; });
  refused(forward, [&](NormForward& k) { k.y = other; });
  refused(forward, [&](NormForward& k) { k.weight = mean; });
  refused(forward, [&](NormForward& k) { k.rstd = weight; });
  refused(forward, [&](NormForward& k) { k.x.row_stride = 9; });

  const Tensor dweight = machine.wide("dweight", {8});
  const NormBackward backward{NormKind::layer_norm, x, {}, y, weight, mean, mean, x, dweight, {}};
  backward.check();
  refused(backward, [&](NormBackward& k) { k.dx = other; });
  refused(backward, [&](NormBackward& k) { k.dx = y; });
  refused(backward, [&](NormBackward& k) { k.dweight = weight; });
  refused(backward, [&](NormBackward& k) { k.dbias = mean; });
}

}  // namespace llmtrain::kernels
