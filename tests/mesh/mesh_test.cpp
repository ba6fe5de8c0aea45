// Every layout trains as one rank does: the same gradients, losses and weights, in fp64 to within
// what the order of additions changes.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

constexpr int kSteps = 20;
constexpr double kBound = 1e-11;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t bar = text.find(" | ");
    parts.emplace_back(text.substr(0, bar));
    text = bar == std::string_view::npos ? "" : text.substr(bar + 3);
  }
  return parts;
}

const ProbeModel& model_of(const Layout& layout) {
  const auto& models = probe_models();
  return *std::find_if(models.begin(), models.end(),
                       [&](const ProbeModel& model) { return model.name == layout.model; });
}

// One rank's run, kept for all layouts that are compared with it.
const ProbeResult& one_rank(const Layout& layout) {
  static std::map<std::pair<std::string_view, std::string_view>, ProbeResult> kept;
  const auto key = std::pair(layout.model, layout.overrides);
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second;
  return kept[key] = run_probe(model_of(layout), 1, kSteps, split(layout.overrides));
}

// What is smaller than this throughout is noise around zero, like the gradient of a key's bias,
// which no probability of attention depends on; Adam makes steps of a weight from it, of which the
// learning rate is the measure.
double noise(const std::string& name) { return name.starts_with("gradient") ? 1e-6 : 2e-2; }

// The largest difference, relative to the largest element.
double difference(const Logical& a, const Logical& b, double at_least) {
  double largest = at_least, off = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    largest = std::max(largest, std::abs(b.values[i]));
    off = std::max(off, std::abs(a.values[i] - b.values[i]));
  }
  return off / largest;
}

void compare(const ProbeResult& found, const ProbeResult& expected) {
  REQUIRE(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name);
    REQUIRE(found.tensors.contains(name));
    const Logical& other = found.tensors.at(name);
    REQUIRE(other.values.size() == tensor.values.size());
    REQUIRE(difference(other, tensor, noise(name)) <= kBound);
  }
  for (const auto& [name, value] : expected.numbers) {
    CAPTURE(name);
    REQUIRE(found.numbers.contains(name));
    REQUIRE(std::abs(found.numbers.at(name) - value) <= kBound * std::abs(value));
  }
}

}  // namespace

TEST_CASE("every layout has the gradients, losses and weights of one rank") {
  set_mpi_environment();
  for (const Layout& layout : layouts()) {
    const std::string title = fmt::format("{} ranks, {}, {} {}", layout.ranks, layout.model,
                                          layout.parallelism, layout.overrides);
    CAPTURE(title);
    const ProbeResult& expected = one_rank(layout);
    REQUIRE(expected.problem == "");
    REQUIRE(expected.numbers.size() == 2 * kSteps);
    std::vector<std::string> overrides = split(layout.overrides);
    for (const std::string& key : split(layout.parallelism)) overrides.push_back(key);
    const ProbeResult found = run_probe(model_of(layout), layout.ranks, kSteps, overrides);
    REQUIRE(found.problem == "");
    compare(found, expected);
  }
}

}  // namespace llmtrain::test
