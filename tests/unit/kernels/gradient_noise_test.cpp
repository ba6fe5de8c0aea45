// Noise on gradients: by its definition, its moments, and the fast kernel's bits.
#include "kernels/gradient_noise.hpp"

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/optimizer_trial.hpp"

namespace llmtrain::kernels {

using trial::decision_of;
using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

StochasticRounding words_of(std::string_view tensor, std::int64_t numel) {
  return {.on = true, .key = philox_key(7, "gradient noise", tensor), .columns = numel};
}

/// What zero gradients of n elements are after update number t, counted from 1, of variance
/// `eta` t^-gamma.
Values noise(const KernelTable& table, std::string_view tensor, std::int64_t n, int t, double eta,
             double gamma, double grad_scale = 1) {
  Machine machine(table, DType::f32, DType::f32, 1);
  const Tensor g = machine.of(Values(static_cast<std::size_t>(n), 0.0), {n}, DType::f32);
  const Tensor decision = decision_of(machine, grad_scale, t);
  const NoisyGradient gradient{g, words_of(tensor, n)};
  machine.run(GradientNoise{.gradients = std::span(&gradient, 1),
                            .table = {},
                            .decision = decision,
                            .eta = eta,
                            .gamma = gamma});
  return values_of(g);
}

double mean_product(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum / static_cast<double>(a.size());
}

/// Whole tensors, slices, and boxes whose rows lie apart in the tensor.
StochasticRounding part(std::int64_t n, int kind) {
  StochasticRounding words = words_of("w", n);
  if (kind == 1) words.first = 5;
  if (kind == 2) {
    words.first = 6;
    words.columns = 7;
    words.stride = 19;
    words.before = 3;
  }
  return words;
}

}  // namespace

TEST_CASE("noise is the normal quantile of the element's word times the deviation of the update") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Machine machine(*table, dtype, dtype, 2);
      const std::int64_t n = 5000;
      const Tensor g = machine.operand("g", {n});
      const Values before = values_of(g);
      const Tensor decision = decision_of(machine, 0.25, 3);
      const NoisyGradient gradient{g, part(n, 2)};
      machine.run(GradientNoise{.gradients = std::span(&gradient, 1),
                                .table = {},
                                .decision = decision,
                                .eta = 0.3,
                                .gamma = 0.55});
      const PhiloxKey key = philox_key(7, "gradient noise", "w");
      const Values after = values_of(g);
      double difference = 0, size = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        // The third update is number 2 from 0; elements begin as the fourth of a row of seven.
        const auto index = static_cast<std::uint64_t>(6 + (i + 3) / 7 * 19 + (i + 3) % 7);
        const double z = normal_quantile(unit_interval(philox_word(key, 2, index)));
        const auto e = static_cast<std::size_t>(i);
        const double expected = before[e] + z * std::sqrt(0.3 / std::pow(3.0, 0.55)) / 0.25;
        difference += (after[e] - expected) * (after[e] - expected);
        size += expected * expected;
      }
      CHECK(std::sqrt(difference / size) < (dtype == DType::f64 ? 1e-15 : 1e-7));
    }
  }
}

TEST_CASE("noise has no mean, the variance of its update, and nothing to do with other noise") {
  constexpr std::int64_t kCount = 1 << 18;
  const double error = 1 / std::sqrt(static_cast<double>(kCount));  // of a mean of unit variance
  const KernelTable& table = cpu_table();
  const Values first = noise(table, "w", kCount, 1, 0.3, 0.55);
  const Values ones(first.size(), 1.0);
  for (const int t : {1, 2, 10, 1000}) {
    CAPTURE(t);
    const double variance = 0.3 / std::pow(t, 0.55);
    const Values x = noise(table, "w", kCount, t, 0.3, 0.55);
    CHECK(std::abs(mean_product(x, ones)) < 4 * error * std::sqrt(variance));
    CHECK(std::abs(mean_product(x, x) / variance - 1) < 4 * std::sqrt(2.0) * error);
    Values squares = x;
    for (double& e : squares) e *= e;
    // The fourth moment of a normal number is 3, whose square has the mean 105.
    CHECK(std::abs(mean_product(squares, squares) / variance / variance - 3) <
          4 * std::sqrt(96.0) * error);
    if (t == 1) continue;
    const double of_both = std::sqrt(0.3 * variance);
    CHECK(std::abs(mean_product(x, first)) < 4 * error * of_both);
  }
  const Values other = noise(table, "v", kCount, 1, 0.3, 0.55);
  CHECK(std::abs(mean_product(first, other)) < 4 * error * 0.3);
  const Values next(first.begin() + 1, first.end()), but_last(first.begin(), first.end() - 1);
  CHECK(std::abs(mean_product(next, but_last)) < 4 * error * 0.3);
  // What an update multiplies with the scale of gradients gets as much more.
  const Values scaled = noise(table, "w", 100, 1, 0.3, 0.55, 0x1p-16);
  for (std::size_t i = 0; i < scaled.size(); ++i) CHECK(scaled[i] == 0x1p16 * first[i]);
}

TEST_CASE("fast noise has the reference's bits, of lists and of parts, with any threads") {
  constexpr std::int64_t kSizesOfList[] = {0, 5, kListChunk, 0, kListChunk + 1, 70'001, 1, 0};
  const auto made = [&](const KernelTable& table, int threads) {
    Machine machine(table, DType::f32, DType::f32, threads);
    const Tensor decision = decision_of(machine, 0.3, 4);
    std::vector<Tensor> owned;
    std::vector<NoisyGradient> list;
    for (const std::int64_t n : kSizesOfList) {
      owned.push_back(machine.operand("g", {n}));
      list.push_back({owned.back(), part(n, static_cast<int>(owned.size() % 3))});
    }
    const std::span<const NoisyGradient> all(list);
    const Tensor rows = make_table<GradientNoise>(*machine.ctx().device, all, "table");
    machine.run(GradientNoise{
        .gradients = all, .table = rows, .decision = decision, .eta = 0.01, .gamma = 0.55});
    std::vector<Values> values;
    for (const Tensor& g : owned) values.push_back(values_of(g));
    return values;
  };
  const auto expected = made(cpu_reference_table(), 1);
  for (const int threads : {1, 2, 3}) CHECK(made(cpu_table(), threads) == expected);
}

TEST_CASE("where the decision does not apply there is no noise") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor g = machine.operand("g", {96});
    const Values before = values_of(g);
    Values numbers(UpdateDecision::kScalars, 1.0);
    numbers[2] = 0;  // apply
    const Tensor no = machine.of(numbers, {UpdateDecision::kScalars}, DType::f64);
    const NoisyGradient gradient{g, words_of("w", 96)};
    GradientNoise op{
        .gradients = std::span(&gradient, 1), .table = {}, .decision = no, .eta = 1, .gamma = 0};
    machine.run(op);
    CHECK(values_of(g) == before);

    const auto refused = [&](const auto& change) {
      GradientNoise wrong = op;
      change(wrong);
      CHECK_THROWS_AS(wrong.check(), InternalError);
    };
    const Tensor halves = machine.empty({6}, DType::bf16);
    const NoisyGradient narrow{halves, words_of("w", 6)};
    const NoisyGradient without{g, {}};
    refused([&](GradientNoise& k) { k.gradients = {}; });
    refused([&](GradientNoise& k) { k.gradients = std::span(&narrow, 1); });
    refused([&](GradientNoise& k) { k.gradients = std::span(&without, 1); });
    refused([&](GradientNoise& k) { k.decision = g; });
    refused([&](GradientNoise& k) { k.eta = 0; });
    refused([&](GradientNoise& k) { k.gamma = -1; });
  }
}

}  // namespace llmtrain::kernels
