// Quantization on the device: codes, scales and numbers have the reference's bits.
#include "kernels/quantize/quantize.hpp"

#include "kernels/update_decision.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/unit/kernels/quantize_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

struct Case {
  Shape shape;
  DType x = DType::bf16, y = DType::bf16;
  std::int64_t gap = 0;
  bool stochastic = false;
};

std::vector<std::uint8_t> bytes_of(Machine& m, const Tensor& tensor) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.numel()));
  if (bytes.empty()) return bytes;
  m.device().synchronize();
  m.device().backend().copy_to_host(bytes.data(), tensor.view().data, bytes.size());
  return bytes;
}

std::vector<float> floats_of(Machine& m, const Tensor& tensor) {
  const Values values = m.read(tensor);
  return {values.begin(), values.end()};
}

quantized::QuantizedMatrix run(Place place, const Quantizer& quantizer, const Case& c) {
  Machine m(place, DType::f32, DType::f32);
  const std::vector<float> values =
      quantized::quantized_matrix(c.shape.rows(), c.shape.cols(), true);
  const Tensor x = m.of({values.begin(), values.end()}, c.shape, c.x, c.gap);
  const std::int64_t count =
      quantizer.block.down(c.shape.rows()) * quantizer.block.across(c.shape.cols());
  const Tensor amax = m.zeros({count}, DType::f32);
  const Tensor scale =
      m.of(Values(static_cast<std::size_t>(count), quantized::scale_of_earlier_steps(quantizer)),
           {count}, DType::f32);
  const Tensor scale_inv = m.of(Values(static_cast<std::size_t>(count), 0.1), {count}, DType::f32);
  if (quantizer.source == ScaleSource::amax) {
    m.run(BlockAmax{.x = x, .amax = amax, .block = quantizer.block});
    m.run(ScaleFromAmax{.amax = amax,
                        .scale = scale,
                        .scale_inv = scale_inv,
                        .max = quantizer.format.max,
                        .largest = largest_of(c.x),
                        .power_of_two = quantizer.power_of_two});
  }
  const Tensor codes = m.device().allocate(c.shape, DType::u8, Category::activations, "codes");
  const Tensor y = m.empty(c.shape, c.y, 2 * c.gap), again = m.empty(c.shape, c.y);
  const Tensor saturated = m.zeros({1}, DType::f64);
  m.run(Quantize{
      .x = x,
      .scale = scale,
      .scale_inv = scale_inv,
      .codes = codes,
      .y = y,
      .saturated = saturated,
      .format = quantizer.format,
      .block = quantizer.block,
      .rounding = {
          .stochastic = c.stochastic, .key = philox_key(test_seed(), "test", "q"), .step = 3}});
  m.run(Dequantize{.codes = codes,
                   .scale_inv = scale_inv,
                   .y = again,
                   .format = quantizer.format,
                   .block = quantizer.block});
  CHECK(quantized::same_numbers(floats_of(m, again), floats_of(m, y)));
  return {bytes_of(m, codes), floats_of(m, scale), floats_of(m, y), m.read(saturated)[0]};
}

void compare_places(const Quantizer& quantizer, const Case& c) {
  CAPTURE(quantizer.name);
  CAPTURE(to_string(c.shape));
  CAPTURE(c.gap);
  CHECK(quantized::same(run(Place::gpu, quantizer, c), run(Place::reference, quantizer, c)));
}

}  // namespace

TEST_CASE("every quantizer has the reference's bits on the device") {
  const Shape shapes[] = {{0, 3}, {3, 0}, {1, 1}, {5, 33}, {131, 264}};
  for (const Quantizer& quantizer : quantizers()) {
    for (const Shape& shape : shapes) {
      for (const std::int64_t gap : {0, 3}) compare_places(quantizer, {.shape = shape, .gap = gap});
    }
  }
  // Packs of rows that lie apart, and pieces of one long row.
  compare_places(find_quantizer("e4m3_1x128"), {.shape = {4, 264}, .gap = 8});
  compare_places(find_quantizer("e5m2_current"), {.shape = {1, 2500}});
}

TEST_CASE("quantization between all types, and of odd blocks, has the reference's bits") {
  for (const DType x : kTypes) {
    for (const DType y : kTypes) {
      for (const BlockShape& block :
           {BlockShape{3, 40}, BlockShape{2, 12}, BlockShape{0, 1}, BlockShape{1, 0}}) {
        compare_places({"test", kE5M2, block}, {.shape = {70, 136}, .x = x, .y = y});
      }
    }
  }
}

TEST_CASE("rounding by chance draws the same words on the device") {
  for (const Shape& shape : {Shape{7, 33}, Shape{33, 64}}) {
    for (const DType x : kTypes) {
      compare_places(find_quantizer("e5m2_current"), {.shape = shape, .x = x, .stochastic = true});
    }
  }
  const auto of_rows = [&](Place place) {
    Machine m(place, DType::f32, DType::f32);
    const Tensor x = m.operand("x", {3, 40}), one = m.of({1}, {1}, DType::f32);
    const Tensor y = m.empty({3, 40}, DType::f32);
    m.run(Quantize{.x = x,
                   .scale = one,
                   .scale_inv = one,
                   .y = y,
                   .format = kE4M3,
                   .rounding = {.stochastic = true,
                                .key = philox_key(test_seed(), "test", "q"),
                                .step = 99,
                                .scalars = m.of({6, 1, 0, 0}, {4}, DType::f64),
                                .row_id = m.integers(std::vector<std::int64_t>{8, 2, 5}),
                                .width = 100,
                                .first_col = 7}});
    return m.read(y);
  };
  CHECK(of_rows(Place::gpu) == of_rows(Place::reference));
}

TEST_CASE("histories of an amax have the reference's bits on the device") {
  for (const std::int64_t length : {0, 1, 5}) {
    for (const HistoryAmax algorithm : {HistoryAmax::max, HistoryAmax::most_recent}) {
      const auto after = [&](Place place, bool applies) {
        Machine m(place, DType::f32, DType::f32);
        const std::int64_t tensors = 300;
        Values amax = m.read(m.operand("amax", {tensors})), max(tensors, 448.0);
        for (double& x : amax) x = std::abs(x);
        for (const auto& [i, x] : {std::pair(0, INFINITY), {1, NAN}, {2, 1e-40f}, {3, 0.0f}}) {
          amax[static_cast<std::size_t>(i)] = x;
        }
        max[7] = 57344;
        Tensor history;
        if (length > 0) {
          Values earlier = m.read(m.operand("history", {tensors, length}));
          for (double& x : earlier) x = std::abs(x);
          history = m.of(earlier, {tensors, length}, DType::f32, 2);
        }
        const Tensor scale = m.of(Values(tensors, 2.5), {tensors}, DType::f32);
        const Tensor scale_inv = m.of(Values(tensors, 0.4), {tensors}, DType::f32);
        Values decision(UpdateDecision::kScalars, 0.0);
        decision[2] = applies ? 1 : 0;
        m.run(RollAmaxHistory{.amax = m.of(amax, {tensors}, DType::f32),
                              .history = length > 0 ? history.view() : View{},
                              .scale = scale,
                              .scale_inv = scale_inv,
                              .max = m.of(max, {tensors}, DType::f32),
                              .decision = m.of(decision, {UpdateDecision::kScalars}, DType::f64),
                              .margin = 2,
                              .algorithm = algorithm});
        std::vector<float> all = floats_of(m, scale);
        for (const float x : floats_of(m, scale_inv)) all.push_back(x);
        if (length == 0) return all;
        for (const float x : floats_of(m, history)) all.push_back(x);
        return all;
      };
      for (const bool applies : {true, false}) {
        CHECK(
            quantized::same_numbers(after(Place::gpu, applies), after(Place::reference, applies)));
      }
    }
  }
}

namespace {

/// What a product of codes asks for.
struct Coded {
  std::vector<std::uint8_t> codes, transposed;
  double saturated = 0;
  bool operator==(const Coded&) const = default;
};

struct CodeCase {
  Shape shape;
  DType x = DType::bf16;
  std::int64_t gap = 0;
  bool codes = true, transposed = true;
  float scale = 3.7f;
};

Coded coded(Place place, const NumberFormat& format, const Values& values, const CodeCase& c) {
  Machine m(place, DType::f32, DType::f32);
  const Tensor x = m.of(values, c.shape, c.x, c.gap);
  const Tensor scale = m.of({c.scale}, {1}, DType::f32), saturated = m.of({3}, {1}, DType::f64);
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return m.device().allocate({rows, cols}, DType::u8, Category::activations, "codes");
  };
  const Tensor codes = bytes(c.shape.rows(), c.shape.cols());
  const Tensor transposed = bytes(c.shape.cols(), c.shape.rows());
  m.run(Quantize{.x = x,
                 .scale = scale,
                 .scale_inv = {},
                 .codes = c.codes ? codes.view() : View{},
                 .y = {},
                 .transposed = c.transposed ? transposed.view() : View{},
                 .saturated = saturated,
                 .format = format});
  return {c.codes ? bytes_of(m, codes) : std::vector<std::uint8_t>(),
          c.transposed ? bytes_of(m, transposed) : std::vector<std::uint8_t>(),
          m.read(saturated)[0]};
}

void compare_codes(const Values& values, const CodeCase& c) {
  CAPTURE(to_string(c.shape));
  CAPTURE(to_string(c.x));
  CAPTURE(c.gap);
  for (const NumberFormat& format : {kE4M3, kE5M2}) {
    CAPTURE(format.name);
    CHECK(coded(Place::gpu, format, values, c) == coded(Place::reference, format, values, c));
  }
}

/// Of a format: each number, what lies in the middle between two, and the neighbours of both in
/// FP32; infinities, NaNs, and subnormal numbers. Filled up with zeros to whole rows of 64.
Values around_codes(const NumberFormat& format) {
  Values values = {INFINITY, -INFINITY, NAN,   -NAN,   1e-40f,
                   -1e-45f,  0x1p-127f, 3e38f, -3e38f, -0.0f};
  std::vector<float> numbers;
  for (int code = 0; code < 128; ++code) {
    const float x = decode(format, static_cast<std::uint8_t>(code));
    if (std::isfinite(x)) numbers.push_back(x);
  }
  numbers.push_back(2 * limit_of(format) - format.max);
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    for (const float x : {numbers[i], 0.5f * (numbers[i] + numbers[i + 1])}) {
      for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, INFINITY)}) {
        values.push_back(near);
        values.push_back(-near);
      }
    }
  }
  values.resize((values.size() + 1023) / 1024 * 1024, 0.0);
  return values;
}

}  // namespace

TEST_CASE("codes by the hardware's conversion have the reference's bits for every kind of number") {
  for (const NumberFormat& format : {kE4M3, kE5M2}) {
    const Values values = around_codes(format);
    const auto rows = static_cast<std::int64_t>(values.size()) / 64;
    for (const bool transposed : {false, true}) {
      compare_codes(values,
                    {.shape = {rows, 64}, .x = DType::f32, .transposed = transposed, .scale = 1});
    }
  }
  Values all;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    all.push_back(to_float(bf16{static_cast<std::uint16_t>(bits)}));
  }
  for (const float scale : {1.0f, 448.0f / 3, 0x1p-100f, 0.0f}) {
    for (const bool transposed : {false, true}) {
      compare_codes(all, {.shape = {256, 256}, .transposed = transposed, .scale = scale});
    }
  }
}

TEST_CASE("codes and codes transposed come from one reading, of whole tiles and of any shape") {
  for (const Shape& shape :
       {Shape{16, 16}, Shape{128, 64}, Shape{144, 72}, Shape{272, 208}, Shape{5, 33},
        Shape{130, 64}, Shape{16, 20}, Shape{0, 16}, Shape{16, 0}}) {
    const std::vector<float> x = quantized::quantized_matrix(shape.rows(), shape.cols(), true);
    const Values values(x.begin(), x.end());
    for (const std::int64_t gap : {0, 3, 16}) {
      for (const auto& [codes, transposed] :
           {std::pair(true, true), std::pair(false, true), std::pair(true, false)}) {
        compare_codes(values,
                      {.shape = shape, .gap = gap, .codes = codes, .transposed = transposed});
      }
    }
    for (const DType type : kTypes) compare_codes(values, {.shape = shape, .x = type});
  }
}

TEST_CASE("the amax of a tensor is the same to the bit, whatever its size, and rises only") {
  for (const Shape& shape : {Shape{1, 8}, Shape{1, 2500}, Shape{33, 1024}, Shape{300, 72}}) {
    for (const DType type : kTypes) {
      for (const std::int64_t gap : {0, 16}) {
        const auto amax = [&](Place place, float before) {
          Machine m(place, DType::f32, DType::f32);
          const std::vector<float> x =
              quantized::quantized_matrix(shape.rows(), shape.cols(), false);
          Values values(x.begin(), x.end());
          values[values.size() / 2] = NAN;
          values.back() = -3e4;
          const Tensor largest = m.of({before}, {1}, DType::f32);
          m.run(BlockAmax{.x = m.of(values, shape, type, gap), .amax = largest});
          return m.read(largest)[0];
        };
        for (const float before : {0.0f, 1e9f}) {
          CHECK(amax(Place::gpu, before) == amax(Place::reference, before));
        }
      }
    }
  }
}
