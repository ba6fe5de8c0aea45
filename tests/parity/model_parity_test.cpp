// Logits, loss and every gradient of the model families against transformers
// (scripts/golden/models.py).
#include <algorithm>
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include "tests/parity/golden.hpp"

namespace llmtrain::test {

namespace {

using Gradients = std::map<std::string, std::vector<double>>;

struct Outcome {
  double loss = 0;
  std::vector<double> logits;
  Gradients gradients;
};

Outcome run(const Golden& golden, RunOptions options) {
  options.seq_len = golden.batch().length;
  DecoderRun model(golden.spec(), options);
  model.fill([&](const Parameter& p) { return golden.weights(p); });
  Outcome outcome;
  outcome.loss = model.forward_backward(golden.batch());
  outcome.logits = model.logits(golden.batch());
  for (const auto& p : model.store().all()) outcome.gradients[p->name()] = to_doubles(p->grad());
  return outcome;
}

/// "model.layers.3" for its parameters, the first two words for others.
std::string layer_of(const std::string& name) {
  std::size_t end = name.find('.', name.find('.') + 1);
  if (name.starts_with("model.layers.")) end = name.find('.', end + 1);
  return name.substr(0, end);
}

/// Largest gradient norm of each layer.
std::map<std::string, double> layer_scales(const Golden& golden) {
  std::map<std::string, double> scales;
  for (const std::string& name : golden.parameters()) {
    double& scale = scales[layer_of(name)];
    scale = std::max(scale, l2_norm(golden.gradient(name).values));
  }
  return scales;
}

/// Every gradient within `tolerance` of its norm, or of 1e-3 of its layer's largest if that is
/// more. Returns the largest share of the tolerance that was used.
double check_gradients(const Golden& golden, const Outcome& ours, double tolerance) {
  const std::map<std::string, double> scales = layer_scales(golden);
  REQUIRE(ours.gradients.size() == golden.parameters().size());
  double worst = 0;
  for (const auto& [name, gradient] : ours.gradients) {
    CAPTURE(name);
    const Reference expected = golden.gradient(name);
    const double scale = std::max(l2_norm(expected.values), 1e-3 * scales.at(layer_of(name)));
    const double error = l2_distance(gradient, expected.values);
    CHECK(error <= tolerance * scale);
    worst = std::max(worst, error / (tolerance * scale));
  }
  return worst;
}

double check_all(const Golden& golden, const Outcome& ours, double tolerance) {
  const Reference logits = golden.logits();
  CHECK(l2_distance(ours.logits, logits.values) <= tolerance * l2_norm(logits.values));
  const double loss = golden.loss().values[0];
  CHECK(std::abs(ours.loss - loss) <= tolerance * loss);
  return check_gradients(golden, ours, tolerance);
}

}  // namespace

TEST_CASE("in fp64 logits, loss and gradients are PyTorch's to 1e-9") {
  double worst = 0;
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    const RunOptions options{.compute = DType::f64, .table = &kernels::cpu_reference_table()};
    worst = std::max(worst, check_all(golden, run(golden, options), 1e-9));
  }
  MESSAGE("worst gradient error in fp64: ", worst * 1e-9);
}

TEST_CASE("in fp32 logits, loss and gradients are PyTorch's fp64 values to 1e-5") {
  for (const auto* table : {&kernels::cpu_reference_table(), &kernels::cpu_table()}) {
    CAPTURE(table->device());
    double worst = 0;
    for (const std::string& name : kGoldenModels) {
      CAPTURE(name);
      const Golden golden(name);
      worst = std::max(worst, check_all(golden, run(golden, {.table = table}), 1e-5));
    }
    MESSAGE("worst gradient error in fp32, ", table->device(), ": ", worst * 1e-5);
  }
}

TEST_CASE("in bf16 errors are at most twice those of PyTorch's bf16 run") {
  for (const auto* table : {&kernels::cpu_reference_table(), &kernels::cpu_table()}) {
    CAPTURE(table->device());
    double worst = 0;
    for (const std::string& name : kGoldenModels) {
      CAPTURE(name);
      const Golden golden(name);
      const Outcome ours = run(golden, {.compute = DType::bf16, .table = table});
      CHECK(l2_distance(ours.logits, golden.logits().values) <= 2 * golden.logits().bf16_error);
      const Reference loss = golden.loss();
      CAPTURE(loss.bf16_error);
      CHECK(std::abs(ours.loss - loss.values[0]) <= 2 * loss.bf16_error);
      for (const auto& [parameter, gradient] : ours.gradients) {
        CAPTURE(parameter);
        const Reference expected = golden.gradient(parameter);
        const double error = l2_distance(gradient, expected.values);
        CHECK(error <= 2 * expected.bf16_error);
        worst = std::max(worst, error / expected.bf16_error);
      }
    }
    MESSAGE("worst gradient error in bf16, ", table->device(), ": ", worst, " of PyTorch's");
  }
}

TEST_CASE("deferred weight gradients and recomputation change no bit") {
  const std::vector<std::pair<std::string, RunOptions>> variants{
      {"deferred", {.weight_grads = WeightGrads::deferred}},
      {"recomputed blocks", {.recompute_blocks = true}},
      {"recomputed blocks, deferred",
       {.weight_grads = WeightGrads::deferred, .recompute_blocks = true}},
      {"recomputed operations", {.recomputed_ops = {"norm", "activation"}}},
      {"recomputed operations, deferred",
       {.weight_grads = WeightGrads::deferred, .recomputed_ops = {"norm", "activation"}}}};
  for (const std::string& name : kGoldenModels) {
    CAPTURE(name);
    const Golden golden(name);
    for (const DType compute : {DType::f32, DType::bf16}) {
      CAPTURE(to_string(compute));
      const Outcome plain = run(golden, {.compute = compute});
      for (auto [label, options] : variants) {
        CAPTURE(label);
        options.compute = compute;
        const Outcome other = run(golden, options);
        CHECK(other.loss == plain.loss);
        for (const auto& [parameter, gradient] : plain.gradients) {
          CAPTURE(parameter);
          CHECK(other.gradients.at(parameter) == gradient);
        }
      }
    }
  }
}

}  // namespace llmtrain::test
