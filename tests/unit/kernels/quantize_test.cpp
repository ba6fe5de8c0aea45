// Quantizers against ml_dtypes and Transformer Engine's formulas (scripts/golden/quantize.py), and
// the fast kernels against the reference.
#include "kernels/quantize/quantize.hpp"

#include <fstream>

#include <doctest/doctest.h>
#include <hwy/highway.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/kernels/quantize_case.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using quantized::quantized_matrix;
using quantized::QuantizedMatrix;
using trial::Machine;

namespace {

const nlohmann::json& golden() {
  static const nlohmann::json json = [] {
    std::ifstream file(test_file("unit/kernels/quantize_golden.json"));
    return nlohmann::json::parse(file);
  }();
  return json;
}

float number(const nlohmann::json& bits) {
  return bits.is_null() ? std::numeric_limits<float>::quiet_NaN()
                        : std::bit_cast<float>(bits.get<std::uint32_t>());
}

// Formats that no quantizer has: the description of a format admits them.
constexpr NumberFormat kFormats[] = {
    kE4M3,
    kE5M2,
    {.name = "e3m2", .bits = 6, .mantissa_bits = 2, .least_exponent = -4, .max = 28, .nan = 0},
    {.name = "e2m3", .bits = 6, .mantissa_bits = 3, .least_exponent = -3, .max = 7.5, .nan = 0},
    {.name = "e2m1", .bits = 4, .mantissa_bits = 1, .least_exponent = -1, .max = 6, .nan = 0},
    {.name = "int8",
     .bits = 8,
     .mantissa_bits = 8,
     .least_exponent = 0,
     .max = 127,
     .nan = 0,
     .twos_complement = true}};

/// A table of kernels with an instruction set.
struct Place {
  const KernelTable* table;
  std::int64_t target;  // 0: the best
  int threads;
};

std::vector<Place> places() {
  std::vector<Place> all{
      {&cpu_reference_table(), 0, 1}, {&cpu_table(), 0, 1}, {&cpu_table(), 0, 3}};
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    all.push_back({&cpu_table(), target, 2});
  }
  return all;
}

template <class F>
void for_places(const F& f) {
  for (const Place& place : places()) {
    CAPTURE(place.table->device());
    CAPTURE(place.target);
    const trial::InstructionSet only(place.target == 0 ? hwy::SupportedTargets() : place.target);
    Machine machine(*place.table, DType::f32, DType::f32, place.threads);
    f(machine);
  }
}

Tensor bytes(Machine& machine, const Shape& shape, std::int64_t gap = 0) {
  const Tensor whole = machine.ctx().device->allocate({shape.rows(), shape.cols() + gap}, DType::u8,
                                                      Category::activations, "codes");
  std::fill_n(whole.view().as<std::uint8_t>(), whole.numel(), std::uint8_t{0xee});
  return gap == 0 ? whole : whole.columns(gap / 2, shape.cols());
}

std::vector<std::uint8_t> codes_of(const View& view) {
  std::vector<std::uint8_t> codes;
  for (std::int64_t i = 0; i < view.rows(); ++i) {
    const auto* const row = view.row<std::uint8_t>(i);
    codes.insert(codes.end(), row, row + view.cols());
  }
  return codes;
}

std::vector<float> floats_of(const View& view) {
  const trial::Values values = trial::values_of(view);
  return {values.begin(), values.end()};
}

struct Run {
  DType x = DType::f32, y = DType::f32;
  std::int64_t gap = 0;
  QuantizeRounding rounding;
};

QuantizedMatrix run(Machine& machine, const Quantizer& quantizer, const std::vector<float>& values,
                    const Shape& shape, const Run& run) {
  const Tensor x = machine.of({values.begin(), values.end()}, shape, run.x, run.gap);
  const std::int64_t count =
      quantizer.block.down(shape.rows()) * quantizer.block.across(shape.cols());
  const trial::Values earlier(static_cast<std::size_t>(count),
                              quantized::scale_of_earlier_steps(quantizer));
  const Tensor scale = machine.of(earlier, {count}, DType::f32);
  const Tensor scale_inv = machine.empty({count}, DType::f32);
  if (quantizer.source == ScaleSource::amax) {
    const Tensor amax =
        machine.of(trial::Values(static_cast<std::size_t>(count)), {count}, DType::f32);
    machine.run(BlockAmax{.x = x, .amax = amax, .block = quantizer.block});
    machine.run(ScaleFromAmax{.amax = amax,
                              .scale = scale,
                              .scale_inv = scale_inv,
                              .max = quantizer.format.max,
                              .largest = largest_of(run.x),
                              .power_of_two = quantizer.power_of_two});
  } else {
    *scale_inv.view().as<float>() = 1 / *scale.view().as<float>();
  }
  const Tensor codes = bytes(machine, shape, run.gap);
  const Tensor y = machine.empty(shape, run.y, 2 * run.gap);
  const Tensor again = machine.empty(shape, run.y);
  const Tensor saturated = machine.of({7}, {1}, DType::f64);
  machine.run(Quantize{.x = x,
                       .scale = scale,
                       .scale_inv = scale_inv,
                       .codes = codes,
                       .y = y,
                       .saturated = saturated,
                       .format = quantizer.format,
                       .block = quantizer.block,
                       .rounding = run.rounding});
  machine.run(Dequantize{.codes = codes,
                         .scale_inv = scale_inv,
                         .y = again,
                         .format = quantizer.format,
                         .block = quantizer.block});
  CHECK(quantized::same_numbers(floats_of(again), floats_of(y)));
  return {codes_of(codes), floats_of(scale), floats_of(y), trial::values_of(saturated)[0] - 7};
}

}  // namespace

TEST_CASE("codes of all bf16 and of all ties, and the numbers of all codes, are ml_dtypes'") {
  for (const NumberFormat& format : kFormats) {
    CAPTURE(format.name);
    const nlohmann::json& of = golden()["formats"][std::string(format.name)];
    const nlohmann::json& numbers = of["decode"];
    REQUIRE(numbers.size() == std::size_t{1} << format.bits);
    for (std::size_t code = 0; code < numbers.size(); ++code) {
      const float found = decode(format, static_cast<std::uint8_t>(code));
      const bool beyond = std::abs(number(numbers[code])) > format.max && format.infinity < 0;
      if (beyond) continue;  // -128, which symmetric integers leave out
      CHECK(quantized::same_numbers({std::isnan(found) ? NAN : found}, {number(numbers[code])}));
    }
    std::size_t next = 0;
    int expected = 0, wrong = 0;
    for (std::uint32_t x = 0; x < 65536; ++x) {
      if (next < of["bf16"].size() && of["bf16"][next][0] == x) expected = of["bf16"][next++][1];
      const int found = encode(format, to_float(bf16{static_cast<std::uint16_t>(x)}));
      wrong += found != (expected < 0 ? format.nan : expected);
    }
    CHECK(wrong == 0);
    for (const nlohmann::json& tie : of["ties"]) {
      CHECK(int{encode(format, number(tie[0]))} == tie[1].get<int>());
    }
  }
}

TEST_CASE("kernels give all bf16 the codes of the format, and back its numbers") {
  std::vector<float> every(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    every[i] = to_float(bf16{static_cast<std::uint16_t>(i)});
  }
  for (const NumberFormat& format : kFormats) {
    CAPTURE(format.name);
    for_places([&](Machine& machine) {
      const Tensor x = machine.ctx().device->allocate({256, 256}, DType::bf16,
                                                      Category::activations, "every bf16");
      for (std::uint32_t i = 0; i < 65536; ++i) {
        x.view().as<std::uint16_t>()[i] = static_cast<std::uint16_t>(i);
      }
      const Tensor one = machine.of({1}, {1}, DType::f32);
      const Tensor codes = bytes(machine, {256, 256}), y = machine.empty({256, 256}, DType::f32);
      machine.run(Quantize{
          .x = x, .scale = one, .scale_inv = one, .codes = codes, .y = y, .format = format});
      const auto found = codes_of(codes);
      const auto numbers = floats_of(y);
      int wrong = 0;
      for (std::size_t i = 0; i < every.size(); ++i) {
        const std::uint8_t expected = encode(format, every[i]);
        wrong += found[i] != expected;
        wrong += !quantized::same_numbers({numbers[i]}, {decode(format, expected)});
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("scales follow from an amax by Transformer Engine's formulas") {
  for (const nlohmann::json& c : golden()["scales"]) {
    const NumberFormat& format = c["format"] == "e4m3" ? kE4M3 : kE5M2;
    const DType dtype = *parse_dtype(c["dtype"].get<std::string>());
    trial::Values amax;
    for (const nlohmann::json& row : c["rows"]) amax.push_back(number(row[0]));
    const auto n = static_cast<std::int64_t>(amax.size());
    for_places([&](Machine& machine) {
      const Tensor scale = machine.empty({n}, DType::f32), inverse = machine.empty({n}, DType::f32);
      machine.run(ScaleFromAmax{.amax = machine.of(amax, {n}, DType::f32),
                                .scale = scale,
                                .scale_inv = inverse,
                                .max = format.max,
                                .largest = largest_of(dtype),
                                .power_of_two = c["power_of_two"]});
      for (std::size_t i = 0; i < amax.size(); ++i) {
        CAPTURE(amax[i]);
        CHECK(quantized::same_numbers({floats_of(scale)[i]}, {number(c["rows"][i][1])}));
        CHECK(quantized::same_numbers({floats_of(inverse)[i]}, {number(c["rows"][i][2])}));
      }
    });
  }
}

TEST_CASE("histories of an amax roll, and scales follow from them, as Transformer Engine's do") {
  for (const nlohmann::json& c : golden()["histories"]) {
    CAPTURE(c["name"].get<std::string>());
    const std::int64_t length = c["length"];
    CAPTURE(length);
    for_places([&](Machine& machine) {
      // The second tensor of three; rows lie apart.
      const std::int64_t earlier = length - 1;
      Tensor history;
      if (earlier > 0) {
        const trial::Values none(static_cast<std::size_t>(3 * earlier));
        history = machine.of(none, {3, earlier}, DType::f32, 2);
      }
      const Tensor amax = machine.of({0, 0, 0}, {3}, DType::f32);
      const Tensor scale = machine.of({1, 1, 1}, {3}, DType::f32);
      const Tensor inverse = machine.of({1, 1, 1}, {3}, DType::f32);
      const double max = c["format"] == "e4m3" ? kE4M3.max : kE5M2.max;
      const Tensor largest = machine.of({1, max, 1}, {3}, DType::f32);
      for (std::size_t step = 0; step < c["amax"].size(); ++step) {
        amax.view().as<float>()[1] = number(c["amax"][step]);
        machine.run(RollAmaxHistory{
            .amax = amax,
            .history = earlier > 0 ? history.view() : View{},
            .scale = scale,
            .scale_inv = inverse,
            .max = largest,
            .margin = c["margin"],
            .algorithm = c["algorithm"] == "max" ? HistoryAmax::max : HistoryAmax::most_recent});
        const nlohmann::json& after = c["after"][step];
        const float found = floats_of(scale)[1];
        CHECK(quantized::same_numbers({found}, {number(after["scale"])}));
        CHECK(quantized::same_numbers({floats_of(inverse)[1]}, {1 / found}));
        for (std::int64_t i = 0; i < earlier; ++i) {
          CHECK(
              quantized::same_numbers({history.view().row<float>(1)[i]},
                                      {number(after["history"][static_cast<std::size_t>(i + 1)])}));
          CHECK(history.view().row<float>(2)[i] == 0);
        }
        CHECK(floats_of(scale)[0] == 1);  // never seen
      }
    });
  }
}

TEST_CASE("matrices of every quantizer have the golden codes and scales") {
  for (const nlohmann::json& c : golden()["tensors"]) {
    const Quantizer& quantizer = find_quantizer(c["quantizer"].get<std::string>());
    CAPTURE(quantizer.name);
    const Shape shape{c["shape"][0].get<std::int64_t>(), c["shape"][1].get<std::int64_t>()};
    CAPTURE(to_string(shape));
    const auto values = quantized_matrix(shape.rows(), shape.cols(), c["special"]);
    for_places([&](Machine& machine) {
      const DType dtype = *parse_dtype(c["dtype"].get<std::string>());
      const auto found = run(machine, quantizer, values, shape, {.x = dtype, .y = DType::bf16});
      if (c.contains("codes")) {
        CHECK(found.codes == c["codes"].get<std::vector<std::uint8_t>>());
        for (std::size_t i = 0; i < found.scales.size(); ++i) {
          CHECK(quantized::same_numbers({found.scales[i]}, {number(c["scales"][i])}));
        }
      }
      CHECK(quantized::fnv(found.codes.data(), found.codes.size()) ==
            std::stoull(c["codes_hash"].get<std::string>()));
      CHECK(quantized::fnv(found.scales.data(), 4 * found.scales.size()) ==
            std::stoull(c["scales_hash"].get<std::string>()));
      CHECK(found.saturated == c["saturated"].get<double>());
    });
  }
}

TEST_CASE("every quantizer of the table has a golden") {
  for (const Quantizer& quantizer : quantizers()) {
    const auto& all = golden()["tensors"];
    CHECK(std::any_of(all.begin(), all.end(),
                      [&](const nlohmann::json& c) { return c["quantizer"] == quantizer.name; }));
  }
  CHECK_THROWS_AS(find_quantizer("e8m0"), InternalError);
}

TEST_CASE("fast quantization has the reference's bits in all types, with gaps and by chance") {
  const Shape shapes[] = {{0, 3}, {3, 0}, {1, 1}, {7, 33}, {140, 1}, {131, 200}, {2, 1030}};
  const BlockShape blocks[] = {{0, 0}, {1, 128}, {128, 1}, {128, 128}, {1, 0}, {0, 1}, {3, 5}};
  for (const Shape& shape : shapes) {
    CAPTURE(to_string(shape));
    const auto values = quantized_matrix(shape.rows(), shape.cols(), true);
    for (const BlockShape& block : blocks) {
      CAPTURE(block.rows);
      CAPTURE(block.cols);
      for (const bool stochastic : {false, true}) {
        const DType x = stochastic ? DType::bf16 : DType::f16;
        Run how{.x = x, .y = stochastic ? DType::f32 : DType::bf16, .gap = 3};
        how.rounding = {.stochastic = stochastic, .key = philox_key(3, "test", "q"), .step = 5};
        const Quantizer quantizer{"test", stochastic ? kE5M2 : kE4M3, block};
        Machine plain(cpu_reference_table(), DType::f32, DType::f32, 1);
        const QuantizedMatrix expected = run(plain, quantizer, values, shape, how);
        for_places([&](Machine& machine) {
          CHECK(quantized::same(run(machine, quantizer, values, shape, how), expected));
        });
      }
    }
  }
}

}  // namespace llmtrain::kernels
