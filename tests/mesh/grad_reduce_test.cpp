// Gradients that travel in another type than they are summed up in (precision.grad_reduce).
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/mesh/layouts.hpp"

namespace llmtrain::test {

namespace {

struct Run {
  int ranks;
  std::vector<std::string> parallelism;
};

double largest(const std::vector<double>& values) {
  double found = 0;
  for (const double value : values) found = std::max(found, std::abs(value));
  return found;
}

// The largest difference of a gradient's element, relative to the largest one.
double difference(const Logical& found, const Logical& expected) {
  double off = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    off = std::max(off, std::abs(found.values[i] - expected.values[i]));
  }
  return off / largest(expected.values);
}

}  // namespace

TEST_CASE("gradients that travel in bf16 are rounded once per rank and once as a sum") {
  set_mpi_environment();
  const ProbeModel& model = probe_models().front();
  const std::vector<std::string> in_fp32{"precision.compute=fp32"};
  const ProbeResult one = run_probe(model, 1, 1, in_fp32);
  REQUIRE(one.problem == "");
  std::vector<Run> runs{
      {2, {"parallelism.dp=2"}},
      {2, {"parallelism.dp=2", "parallelism.zero=3"}},
      {4, {"parallelism.dp=4", "parallelism.zero=2", "parallelism.dp_replicate=2"}},
      {4, {"parallelism.dp=2", "parallelism.tp=2", "parallelism.zero=1"}}};
  if (!is_quick()) {
    runs.insert(runs.end(),
                {{2, {"parallelism.dp=2", "parallelism.zero=1"}},
                 {2, {"parallelism.dp=2", "parallelism.zero=2"}},
                 {2, {"parallelism.sp=2"}},
                 {4, {"parallelism.dp=2", "parallelism.pp=2", "parallelism.pp_schedule=zb_h1"}}});
  }
  for (const Run& run : runs) {
    CAPTURE(fmt::format("{}", run.parallelism));
    std::vector<std::string> overrides = in_fp32;
    overrides.insert(overrides.end(), run.parallelism.begin(), run.parallelism.end());
    overrides.push_back("precision.grad_reduce=bf16");
    const ProbeResult found = run_probe(model, run.ranks, 1, overrides);
    REQUIRE(found.problem == "");
    for (const auto& [name, gradient] : one.tensors) {
      if (!name.starts_with("gradient") || largest(gradient.values) < 1e-6) continue;
      CAPTURE(name);
      const double off = difference(found.tensors.at(name), gradient);
      // Ranks' terms may be larger than their sum, and with dp_replicate sums of sums are rounded.
      CHECK(off <= 0x1p-6);
      CHECK(off >= 0x1p-12);
    }
    const double norm = one.numbers.at("norm 1");
    CHECK(std::abs(found.numbers.at("norm 1") - norm) <= 0x1p-9 * norm);
    CHECK(std::abs(found.numbers.at("loss 1") - one.numbers.at("loss 1")) <= 1e-5);
  }
}

TEST_CASE("gradients of fp64 may travel in fp32, and in fp32 those of fp32 are what they are") {
  set_mpi_environment();
  const ProbeModel& model = probe_models().front();
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides{"parallelism.dp=2", "parallelism.zero=2"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    ProbeResult result = run_probe(model, 2, 1, overrides);
    REQUIRE(result.problem == "");
    return result;
  };
  const auto distance = [](const ProbeResult& a, const ProbeResult& b) {
    double off = 0;
    for (const auto& [name, gradient] : b.tensors) {
      if (!name.starts_with("gradient") || largest(gradient.values) < 1e-6) continue;
      off = std::max(off, difference(a.tensors.at(name), gradient));
    }
    return off;
  };
  const double of_fp64 = distance(run({"precision.grad_reduce=fp32"}), run({}));
  CHECK(of_fp64 <= 0x1p-20);
  CHECK(of_fp64 >= 0x1p-28);
  CHECK(distance(run({"precision.compute=fp32", "precision.grad_reduce=fp32"}),
                 run({"precision.compute=fp32"})) == 0);
}

}  // namespace llmtrain::test
