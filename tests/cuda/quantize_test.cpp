// Quantization on the device: codes, scales and numbers have the reference's bits.
#include "kernels/quantize/quantize.hpp"

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
      const auto after = [&](Place place) {
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
        const Tensor scale_inv = m.empty({tensors}, DType::f32);
        m.run(RollAmaxHistory{.amax = m.of(amax, {tensors}, DType::f32),
                              .history = length > 0 ? history.view() : View{},
                              .scale = scale,
                              .scale_inv = scale_inv,
                              .max = m.of(max, {tensors}, DType::f32),
                              .margin = 2,
                              .algorithm = algorithm});
        std::vector<float> all = floats_of(m, scale);
        for (const float x : floats_of(m, scale_inv)) all.push_back(x);
        if (length == 0) return all;
        for (const float x : floats_of(m, history)) all.push_back(x);
        return all;
      };
      CHECK(quantized::same_numbers(after(Place::gpu), after(Place::reference)));
    }
  }
}
