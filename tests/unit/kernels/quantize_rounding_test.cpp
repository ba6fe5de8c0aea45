// Rounding by chance: unbiased, by words of global indices; and what quantization refuses.
#include <doctest/doctest.h>

#include "kernels/quantize/quantize.hpp"
#include "lib/base/error.hpp"
#include "tests/unit/kernels/quantize_case.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;

namespace {

const PhiloxKey kKey = philox_key(11, "test", "quantize");

Values quantize(Machine& machine, const View& x, const NumberFormat& format,
                const QuantizeRounding& rounding) {
  const Tensor one = machine.of({1}, {1}, DType::f32);
  const Tensor y = machine.empty(x.shape, DType::f32);
  machine.run(Quantize{
      .x = x, .scale = one, .scale_inv = one, .y = y, .format = format, .rounding = rounding});
  return trial::values_of(y);
}

}  // namespace

TEST_CASE("rounding by chance has the number itself as its mean") {
  constexpr std::int64_t kDraws = 100'000;
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 2);
    // Between normal numbers, between subnormal ones, below the least one, close to the largest.
    for (const double x : {1.03, -2.9, 0.0043, 0x1p-11, -300.5, 447.0}) {
      CAPTURE(x);
      const Tensor all = machine.of(Values(kDraws, x), {100, kDraws / 100}, DType::f32);
      const Values y = quantize(machine, all, kE4M3, {.stochastic = true, .key = kKey, .step = 1});
      const double below = *std::min_element(y.begin(), y.end());
      const double above = *std::max_element(y.begin(), y.end());
      CHECK(below < x);
      CHECK(above > x);
      double mean = 0;
      for (const double value : y) {
        CHECK_MESSAGE((value == below || value == above), value);
        mean += value / kDraws;
      }
      const double up = (x - below) / (above - below);
      const double deviation = (above - below) * std::sqrt(up * (1 - up) / kDraws);
      CHECK(std::abs(mean - x) < 4 * deviation);
    }
  }
}

TEST_CASE("rounding by chance leaves the format's numbers, and what is beyond its range") {
  for (const NumberFormat& format : {kE4M3, kE5M2}) {
    Values numbers;
    for (const float x : decode_table(format)) {
      if (std::abs(x) <= format.max) numbers.push_back(x);
    }
    const auto n = static_cast<std::int64_t>(numbers.size());
    Machine machine(cpu_table(), DType::f32, DType::f32, 1);
    const QuantizeRounding rounding{.stochastic = true, .key = kKey, .step = 2};
    CHECK(quantize(machine, machine.of(numbers, {n}, DType::f32), format, rounding) == numbers);
    const Tensor beyond = machine.of({1e30, -1e30, INFINITY}, {3}, DType::f32);
    const double max = format.max;
    CHECK(quantize(machine, beyond, format, rounding) == Values{max, -max, max});
  }
}

TEST_CASE("words of a rounding are those of global indices and of the step on the device") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 3);
    const std::int64_t rows = 9, cols = 37;
    const Tensor x = machine.operand("x", {rows, cols});
    const QuantizeRounding whole{.stochastic = true, .key = kKey, .step = 4};
    const Values expected = quantize(machine, x, kE5M2, whole);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::uint32_t word = philox_word(kKey, 4, i);
      CHECK(expected[i] ==
            decode(kE5M2, encode_by_word(kE5M2, x.view().as<const float>()[i], word)));
    }
    // A part: rows 3 and 7 of columns 5 ... 24, in the step that stands on the device.
    const Tensor part = machine.empty({2, 20}, DType::f32);
    trial::set_values(part, [&] {
      Values values;
      for (const std::int64_t row : {3, 7}) {
        for (std::int64_t col = 5; col < 25; ++col) values.push_back(x.view().row<float>(row)[col]);
      }
      return values;
    }());
    const Tensor ids = machine.integers(std::vector<std::int64_t>{3, 7});
    const Tensor scalars = machine.of({4, 1, 0, 0}, {StepScalars::kScalars}, DType::f64);
    const Values found = quantize(machine, part, kE5M2,
                                  {.stochastic = true,
                                   .key = kKey,
                                   .step = 99,
                                   .scalars = scalars,
                                   .row_id = ids,
                                   .width = cols,
                                   .first_col = 5});
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t row = i < 20 ? 3 : 7;
      CHECK(found[i] == expected[row * 37 + 5 + i % 20]);
    }
  }
}

TEST_CASE("a matrix may be quantized in place, and a largest magnitude only grows") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 2);
    const Tensor x = machine.operand("x", {5, 40});
    const Tensor amax = machine.of({3.5}, {1}, DType::f32), one = machine.of({1}, {1}, DType::f32);
    const double largest = trial::max_magnitude(trial::values_of(x));
    machine.run(BlockAmax{.x = x, .amax = amax});
    CHECK(trial::values_of(amax)[0] == std::max(3.5, largest));
    const Values expected = quantize(machine, x, kE4M3, {});
    machine.run(Quantize{.x = x, .scale = one, .scale_inv = one, .y = x, .format = kE4M3});
    CHECK(trial::values_of(x) == expected);
  }
}

TEST_CASE("quantization refuses operands that do not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor x = machine.operand("x", {4, 130}), one = machine.of({1}, {1}, DType::f32);
  const Tensor eight = machine.operand("s", {8}), wide = machine.empty({4, 130}, DType::f64);
  const BlockShape row{1, 128};
  const auto refused = [&](const auto& kernel) {
    CHECK_THROWS_AS(machine.run(kernel), InternalError);
  };
  refused(BlockAmax{.x = x, .amax = one, .block = row});
  refused(BlockAmax{.x = wide, .amax = one});
  refused(ScaleFromAmax{.amax = eight, .scale = one, .scale_inv = one});
  refused(RollAmaxHistory{.amax = one, .history = x, .scale = one, .scale_inv = one, .max = one});
  refused(RollAmaxHistory{.amax = one, .scale = one, .scale_inv = one, .max = eight});
  refused(Quantize{.x = x, .scale = one, .scale_inv = one, .format = kE4M3});
  refused(Quantize{.x = x, .scale = one, .y = x, .format = kE4M3});
  refused(Quantize{.x = x, .scale = eight, .scale_inv = one, .y = x, .block = row});
  refused(Quantize{.x = x, .scale = one, .scale_inv = one, .codes = x});
  refused(Dequantize{.codes = x, .scale_inv = one, .y = x});
}

}  // namespace llmtrain::kernels
