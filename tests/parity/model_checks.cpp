#include "tests/parity/model_checks.hpp"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

namespace llmtrain::test {

namespace {

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

}  // namespace

Outcome run_golden(const Golden& golden, RunOptions options) {
  options.seq_len = golden.batch().length;
  DecoderRun model(golden.spec(), options);
  model.fill([&](const Parameter& p) { return golden.weights(p); });
  Outcome outcome;
  outcome.loss = model.forward_backward(golden.batch());
  outcome.logits = model.logits(golden.batch());
  for (const auto& p : model.store().all()) {
    if (p->is_trained()) outcome.gradients[p->name()] = to_doubles(p->grad());
  }
  return outcome;
}

double check_against(const Golden& golden, const Outcome& ours, double tolerance) {
  const Reference logits = golden.logits();
  CHECK(l2_distance(ours.logits, logits.values) <= tolerance * l2_norm(logits.values));
  const double loss = golden.loss().values[0];
  CHECK(std::abs(ours.loss - loss) <= tolerance * loss);
  return check_gradients(golden, ours, tolerance);
}

double check_narrow(const Golden& golden, const Outcome& ours, DType dtype) {
  const auto error_of = [&](const Reference& reference) {
    return dtype == DType::bf16 ? reference.bf16_error : reference.fp16_error;
  };
  const Reference logits = golden.logits();
  CHECK(l2_distance(ours.logits, logits.values) <= 2 * error_of(logits));
  const Reference loss = golden.loss();
  CAPTURE(error_of(loss));
  CHECK(std::abs(ours.loss - loss.values[0]) <= 2 * error_of(loss));
  // A bias is the column of its weight whose input is 1. Judged by itself, PyTorch's error of so
  // few elements may be small by chance, so that the two are one gradient here; in fp32 and fp64
  // they are not.
  double worst = 0;
  for (const auto& [parameter, gradient] : ours.gradients) {
    constexpr std::string_view kBias = ".bias", kWeight = ".weight";
    const std::string stem = parameter.substr(0, parameter.rfind('.'));
    if (parameter.ends_with(kBias) && ours.gradients.contains(stem + ".weight")) continue;
    CAPTURE(parameter);
    const Reference expected = golden.gradient(parameter);
    double error = l2_distance(gradient, expected.values);
    double bound = error_of(expected);
    const auto bias = ours.gradients.find(stem + ".bias");
    if (parameter.ends_with(kWeight) && bias != ours.gradients.end()) {
      const Reference expected_bias = golden.gradient(bias->first);
      error = std::hypot(error, l2_distance(bias->second, expected_bias.values));
      bound = std::hypot(bound, error_of(expected_bias));
    }
    CHECK(error <= 2 * bound);
    worst = std::max(worst, error / bound);
  }
  return worst;
}

}  // namespace llmtrain::test
