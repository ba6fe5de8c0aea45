#include <doctest/doctest.h>

#include "kernels/activations.hpp"
#include "tests/support/gradcheck.hpp"

namespace llmtrain::test {

namespace {

ParameterSpec matrix(std::string name, std::int64_t out, std::int64_t in) {
  return {.name = std::move(name), .shape = {out, in}, .init = {}};
}
ParameterSpec vector(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}, .role = ParameterRole::bias, .init = {}};
}

// Outputs of the given widths in one product.
Problem linear(std::int64_t rows, std::int64_t in, std::vector<std::int64_t> widths, bool bias) {
  return {.rows = {.length = rows},
          .inputs = {{rows, in}},
          .build = [in, widths, bias](Place& place) -> Forward {
            std::vector<ParameterSpec> weights, biases;
            for (std::size_t i = 0; i < widths.size(); ++i) {
              weights.push_back(matrix("weight " + std::to_string(i), widths[i], in));
              biases.push_back(vector("bias " + std::to_string(i), widths[i]));
            }
            const ParameterGroup& w = place.store().declare(std::move(weights));
            const ParameterGroup* b = bias ? &place.store().declare(std::move(biases)) : nullptr;
            return [&w, b](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
              return {{ops::linear(ctx, x[0], w, b)}};
            };
          }};
}

}  // namespace

TEST_CASE("a linear layer differentiates to its inputs, weight and bias") {
  check_operation(linear(7, 5, {6}, true));
  check_operation(linear(7, 5, {6}, false));
  check_operation(linear(1, 1, {1}, true));
}

TEST_CASE("linear layers that share one product each get their own gradients") {
  check_operation(linear(9, 4, {6, 2, 3}, true));
  check_operation(linear(9, 4, {5, 5}, false));
}

TEST_CASE("one weight used twice sums both gradients") {
  check_operation({.rows = {.length = 6}, .inputs = {{6, 5}}, .build = [](Place& place) -> Forward {
                     const ParameterGroup& w = place.store().declare(matrix("weight", 5, 5));
                     return [&w](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
                       return {{ops::linear(ctx, ops::linear(ctx, x[0], w, nullptr), w, nullptr)}};
                     };
                   }});
}

TEST_CASE("weight gradients add to what the sink holds") {
  Place place({.length = 2}, {});
  const ParameterGroup& w = place.store().declare(matrix("weight", 1, 1));
  place.store().allocate(place.device(), {DType::f64, DType::f64, DType::f64}, true);
  place.store().initialize(0);
  const std::vector<double> start{100};
  place.device().copy_from_host(w.grad(), std::as_bytes(std::span(start)));
  Tape tape;
  OpCtx ctx = place.context();
  ctx.tape = &tape;
  const Var y = ops::linear(ctx, {place.tensor({2, 3}, {2, 1}), -1, nullptr}, w, nullptr);
  tape.seed(y, place.tensor({1, 10}, {2, 1}));
  tape.backward(ctx, WeightGrads::now);
  std::vector<double> sink(1);
  place.device().copy_to_host(std::as_writable_bytes(std::span(sink)), w.grad());
  CHECK(sink.front() == 132);
}

namespace {

Problem feed_forward(bool bias) {
  return {.rows = {.length = 6}, .inputs = {{6, 5}}, .build = [bias](Place& place) -> Forward {
            const auto linear_of = [&](const std::string& name, std::int64_t out, std::int64_t in) {
              return ops::LinearWeights{
                  &place.store().declare(matrix(name, out, in)),
                  bias ? &place.store().declare(vector(name + " bias", out)) : nullptr};
            };
            const ops::LinearWeights in = linear_of("in", 7, 5), out = linear_of("out", 4, 7);
            return [in, out](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
              return {{ops::mlp(ctx, x[0], in, kernels::Activation::gelu_pytorch_tanh, out)}};
            };
          }};
}

// The reference's kernels on a device that fuses every activation.
const kernels::KernelTable& fusing_table() {
  const auto rows = kernels::cpu_reference_table().rows();
  static const kernels::KernelTable table("fusing", {rows.begin(), rows.end()}, {},
                                          [](kernels::Activation, DType) { return true; });
  return table;
}

}  // namespace

TEST_CASE(
    "an activation between two linear layers differentiates, fused or not, to the same bits") {
  for (const bool bias : {true, false}) {
    check_operation(feed_forward(bias));
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const TrialResult apart = run_trial(feed_forward(bias), {.compute = dtype});
      for (const WeightGrads when : {WeightGrads::now, WeightGrads::deferred}) {
        const TrialResult fused = run_trial(
            feed_forward(bias), {.compute = dtype, .table = &fusing_table(), .weight_grads = when});
        check_same_bits(apart, fused);
        CHECK(fused.kept_bytes == apart.kept_bytes);
      }
      check_same_bits(apart, run_trial(feed_forward(bias), {.compute = dtype,
                                                            .table = &fusing_table(),
                                                            .recomputed_ops = {"activation"}}));
    }
  }
}

}  // namespace llmtrain::test
