#include "kernels/elementwise.hpp"

#include <bit>
#include <limits>

#include <doctest/doctest.h>

#include "kernels/activations.hpp"
#include "lib/base/error.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/kernels/trial.hpp"

namespace llmtrain::kernels {

using trial::Machine;
using trial::Values;
using trial::values_of;

namespace {

const Shape kShapes[] = {{0, 3}, {1, 1}, {7}, {3, 16}, {2, 3, 33}, {65, 1030}};
constexpr std::int64_t kGaps[] = {0, 5};

/// Runs a trial over every shape, with and without gaps between rows.
template <class F>
void for_shapes(const F& f) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t gap : kGaps) {
      CAPTURE(to_string(shape));
      CAPTURE(gap);
      f(shape, gap);
    }
  }
}

const trial::Limits kSameBits = [] {
  trial::Limits limits;
  limits.same_bits_as_reference = true;
  return limits;
}();

std::vector<Activation> all_activations() {
  std::vector<Activation> all;
  for (int i = 0; i < kNumActivations; ++i) all.push_back(static_cast<Activation>(i));
  return all;
}

}  // namespace

TEST_CASE("sums, also into an operand, have the reference's bits") {
  for_shapes([](const Shape& shape, std::int64_t gap) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const bool in_place : {false, true}) {
        trial::compare(
            [&](Machine& machine) {
              const Tensor a = machine.operand("a", shape, gap);
              const Tensor b = machine.operand("b", shape, 2 * gap);
              const Tensor y = in_place ? b : machine.output(shape);
              machine.run(Add{a, b, y});
              return trial::outputs(y);
            },
            dtype, kSameBits);
      }
    }
  });
}

TEST_CASE("casts and scaled sums have the reference's bits between all dtypes") {
  constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      for (const bool accumulate : {false, true}) {
        for_shapes([&](const Shape& shape, std::int64_t gap) {
          std::vector<Values> found;
          for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
            Machine machine(*table, DType::f32, DType::f32, 3);
            const Tensor x = machine.normals("x", shape, from, DType::f64, gap);
            const Tensor y = machine.normals("y", shape, to, DType::f64, gap);
            machine.run(ScaleCast{x, y, 0.3, accumulate});
            found.push_back(values_of(y));
          }
          CHECK(trial::same_bits(found[1], found[0]));
        });
      }
    }
  }
}

TEST_CASE("normalize divides by the root of what squared_norm wrote, or by eps") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Machine machine(*table, DType::f32, DType::f32, 3);
      const Tensor x = machine.of({3, -4, 0, 12}, {2, 2}, DType::f32);
      const Tensor y = machine.empty({2, 2}, dtype);
      machine.run(Normalize{x, machine.of({16}, {1}, DType::f64), y, 0.5});
      CHECK(values_of(y) == Values{0.375, -0.5, 0, 1.5});
      machine.run(Normalize{x, machine.of({1e-9}, {1}, DType::f64), y, 1, 2.0});
      CHECK(values_of(y) == Values{1.5, -2, 0, 6});
    }
  }
}

TEST_CASE("a cast to bf16 rounds to nearest even and keeps NaN and subnormals") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor x = machine.of(
        {1 + 0x1p-8, 1 + 3 * 0x1p-8, 0x1p-133, -inf, 3.4e38, 0x1.0101p0, std::nan(""), -0.0}, {8},
        DType::f32);
    // A NaN that differs from infinity in a bit that bf16 does not have.
    x.view().as<float>()[6] = std::bit_cast<float>(0x7f800001u);
    const Tensor y = machine.empty({8}, DType::bf16);
    machine.run(ScaleCast{x, y});
    const Values found = values_of(y);
    CHECK(Values(found.begin(), found.begin() + 6) ==
          Values{1, 1 + 0x1p-6, 0x1p-133, -inf, inf, 1 + 0x1p-7});
    CHECK(std::isnan(found[6]));
    CHECK((found[7] == 0 && std::signbit(found[7])));
  }
}

// Subnormals, their ties, ties of the largest numbers, overflow; the same bits as the scalar
// conversion with every instruction set.
TEST_CASE("casts from and to fp16 have the bits of the scalar conversions for every number") {
  std::vector<float> wide;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float x = to_float(llmtrain::f16{static_cast<std::uint16_t>(bits)});
    for (const std::uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      wide.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) | low));
    }
    wide.push_back(x / 0x1p13f);  // around what is lost below the subnormals
  }
  const auto n = static_cast<std::int64_t>(wide.size());
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    CAPTURE(hwy::TargetName(target));
    const trial::InstructionSet only(target);
    Machine machine(cpu_table(), DType::f32, DType::f32, 1);
    const Tensor x = machine.empty({n}, DType::f32), y = machine.empty({n}, DType::f16);
    const Tensor back = machine.empty({n}, DType::f32);
    std::copy(wide.begin(), wide.end(), x.view().as<float>());
    machine.run(ScaleCast{x, y});
    machine.run(ScaleCast{y, back});
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const f16 expected = to_f16(x.view().as<float>()[i]);
      const auto bits = std::bit_cast<std::uint32_t>(back.view().as<float>()[i]);
      different += y.view().as<f16>()[i] != expected ||
                   bits != std::bit_cast<std::uint32_t>(to_float(expected));
    }
    CHECK(different == 0);
  }
}

TEST_CASE("fill writes one value everywhere") {
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const std::int64_t n : {0, 1, 1000, 100000, (1 << 20) + 5}) {
        Machine machine(*table, dtype, dtype, 2);
        const Tensor y = machine.output({n});
        machine.run(Fill{y, -1.5});
        CHECK(values_of(y) == Values(static_cast<std::size_t>(n), -1.5));
      }
    }
  }
}

TEST_CASE("activations agree with the reference, forward and backward, with and without up") {
  for (const Activation activation : all_activations()) {
    CAPTURE(to_string(activation));
    for_shapes([&](const Shape& shape, std::int64_t gap) {
      for (const bool gated : {false, true}) {
        trial::Limits limits;
        limits.reference = 16;
        limits.floor = 8;
        const trial::Trial trial = [&](Machine& machine) {
          const Tensor x = machine.operand("x", shape, gap);
          const Tensor dy = machine.operand("dy", shape, gap);
          const Tensor up = gated ? machine.operand("up", shape, gap) : Tensor();
          const Tensor dup = gated ? machine.output(shape, gap) : Tensor();
          const Tensor y = machine.output(shape, gap);
          const Tensor dx = gated ? machine.output(shape, gap) : dy;
          machine.run(ActivationForward{activation, x, up, y});
          machine.run(ActivationBackward{activation, x, up, dy, dx, dup});
          return gated ? trial::outputs(y, dx, dup) : trial::outputs(y, dx);
        };
        trial::compare(trial, DType::f32, limits);
        limits.floor = 2;
        trial::compare(trial, DType::bf16, limits);
        trial::compare(trial, DType::f16, limits);
      }
    });
  }
}

TEST_CASE("fast activations agree with fp64 over their whole range") {
  Values points;
  for (int i = -4000; i <= 4000; ++i) points.push_back(static_cast<float>(i) / 200);
  for (double x = 1e-38; x < 1e38; x *= 3) {
    points.push_back(static_cast<float>(x));
    points.push_back(static_cast<float>(-x));
  }
  const auto n = static_cast<std::int64_t>(points.size());
  for (const Activation activation : all_activations()) {
    CAPTURE(to_string(activation));
    const trial::Trial trial = [&](Machine& machine) {
      const Tensor x = machine.of(points, {n}, machine.compute());
      const Tensor dy = machine.of(Values(points.size(), 1.0), {n}, machine.compute());
      const Tensor y = machine.output({n});
      machine.run(ActivationForward{activation, x, {}, y});
      machine.run(ActivationBackward{activation, x, {}, dy, dy, {}});
      return trial::outputs(y, dy);
    };
    const auto exact = trial::run(trial, cpu_reference_table(), DType::f64, DType::f32, 1);
    const auto fast = trial::run(trial, cpu_table(), DType::f32, DType::f32, 2);
    for (std::size_t i = 0; i < points.size(); ++i) {
      CAPTURE(points[i]);
      // Below zero these functions cancel: their error is that of the factor of x.
      const double unit = 0x1p-24 * std::max(std::abs(points[i]), std::abs(exact[0].values[i]));
      if (std::abs(exact[0].values[i]) < 1e38) {
        CHECK(std::abs(fast[0].values[i] - exact[0].values[i]) <= 8 * unit);
      }
      if (std::abs(points[i]) < 1e9) {
        const double slope_unit = 0x1p-24 * std::max(1.0, std::abs(points[i]));
        CHECK(std::abs(fast[1].values[i] - exact[1].values[i]) <= 8 * slope_unit);
      }
    }
  }
}

TEST_CASE("a NaN reaches the output of every activation and infinities saturate") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Activation activation : all_activations()) {
    CAPTURE(to_string(activation));
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Machine machine(cpu_table(), dtype, dtype, 1);
      const Tensor x = machine.of({std::nan(""), inf, 90, -90}, {4}, dtype);
      const Tensor y = machine.output({4});
      machine.run(ActivationForward{activation, x, {}, y});
      const Values found = values_of(y);
      CHECK(std::isnan(found[0]));
      const bool bounded = activation == Activation::tanh || activation == Activation::sigmoid;
      CHECK(found[1] == (bounded ? 1 : inf));
      CHECK(found[2] == (bounded ? 1
                         : activation == Activation::relu2
                             ? trial::values_of(machine.of({8100}, {1}, dtype))[0]
                             : 90));
      CHECK(found[3] == doctest::Approx(activation == Activation::tanh ? -1 : 0));
    }
  }
}

TEST_CASE("the slope of every activation is its derivative") {
  const Values points = {-3.1, -1, -0.4, 0.01, 0.7, 2, 5};
  const std::int64_t n = 7;
  for (const Activation activation : all_activations()) {
    CAPTURE(to_string(activation));
    Machine machine(cpu_reference_table(), DType::f64, DType::f64, 1);
    const auto value_at = [&](double shift) {
      Values shifted = points;
      for (double& x : shifted) x += shift;
      const Tensor x = machine.of(shifted, {n}, DType::f64);
      machine.run(ActivationForward{activation, x, {}, x});
      return values_of(x);
    };
    const Tensor x = machine.of(points, {n}, DType::f64);
    const Tensor slope = machine.of(Values(points.size(), 1.0), {n}, DType::f64);
    machine.run(ActivationBackward{activation, x, {}, slope, slope, {}});
    const Values above = value_at(1e-6);
    const Values below = value_at(-1e-6);
    for (std::size_t i = 0; i < points.size(); ++i) {
      CHECK(values_of(slope)[i] ==
            doctest::Approx((above[i] - below[i]) / 2e-6).epsilon(1e-8).scale(0.1));
    }
  }
}

TEST_CASE("activations are known by the names of Hugging Face") {
  CHECK(parse_activation("gelu") == Activation::gelu);
  CHECK(parse_activation("gelu_new") == Activation::gelu_pytorch_tanh);
  CHECK(parse_activation("gelu_pytorch_tanh") == Activation::gelu_pytorch_tanh);
  CHECK(parse_activation("silu") == Activation::silu);
  CHECK(parse_activation("swish") == Activation::silu);
  CHECK(to_string(Activation::gelu_pytorch_tanh) == "gelu_pytorch_tanh");
  CHECK_FALSE(parse_activation("").has_value());
  CHECK_FALSE(parse_activation("gel").has_value());
  CHECK_FALSE(parse_activation("gelu gelu_new").has_value());
  for (const std::string_view name : activation_names()) CHECK(parse_activation(name).has_value());
  for (const Activation activation : all_activations()) {
    CHECK(parse_activation(to_string(activation)) == activation);
  }
}

TEST_CASE("dropout has the reference's bits, keeps about 1 - p and scales what it keeps") {
  for (const std::int64_t cols : {1, 3, 64, 1031}) {
    for (const double p : {0.0, 0.1, 0.5, 0.999}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        trial::compare(
            [&](Machine& machine) {
              const Tensor x = machine.operand("x", {70, cols}, 4);
              const Tensor ids = machine.empty({70}, DType::f32);
              std::vector<std::int64_t> rows(70);
              for (std::size_t i = 0; i < rows.size(); ++i) {
                rows[i] = static_cast<std::int64_t>(i * i) + (std::int64_t{1} << 40);
              }
              const View row_id{rows.data(), DType::i64, {70}, 70};
              machine.run(Dropout{x, row_id, x, p, philox_key(3, "dropout", "x"), 1ull << 33});
              return trial::outputs(x);
            },
            dtype, kSameBits);
      }
    }
  }
  Machine machine(cpu_table(), DType::f32, DType::f32, 2);
  const Tensor x = machine.of(Values(100000, 3.0), {100, 1000}, DType::f32);
  std::vector<std::int64_t> rows(100);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  const View row_id{rows.data(), DType::i64, {100}, 100};
  const Tensor y = machine.output({100, 1000});
  machine.run(Dropout{x, row_id, y, 0.25, philox_key(3, "dropout", "x"), 0});
  double kept = 0;
  for (const double v : values_of(y)) {
    CHECK((v == 0 || v == 4));
    kept += v != 0;
  }
  CHECK(kept / 100000 == test::relative(0.75, 0.01));
}

TEST_CASE("dropout keeps an element whose uniform is exactly p and drops it just above") {
  const PhiloxKey key = philox_key(3, "dropout", "x");
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    Machine machine(*table, DType::f32, DType::f32, 1);
    const Tensor x = machine.of(Values(16, 1.0), {1, 16}, DType::f32);
    const Tensor y = machine.output({1, 16});
    std::int64_t id = 0;
    const View row_id{&id, DType::i64, {1}, 1};
    for (std::size_t i = 0; i < 16; ++i) {
      const double uniform = unit_interval(philox_word(key, 0, i));
      machine.run(Dropout{x, row_id, y, uniform, key, 0});
      CHECK(values_of(y)[i] != 0);
      machine.run(Dropout{x, row_id, y, std::nextafter(uniform, 1.0), key, 0});
      CHECK(values_of(y)[i] == 0);
    }
  }
}

TEST_CASE("a row's dropout depends on its id alone") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor x = machine.of(Values(4 * 50, 1.0), {4, 50}, DType::f32);
  const Tensor y = machine.output({4, 50});
  const auto drop = [&](std::vector<std::int64_t> ids) {
    machine.run(
        Dropout{x, View{ids.data(), DType::i64, {4}, 4}, y, 0.5, philox_key(1, "dropout", "x"), 7});
    return values_of(y);
  };
  const Values forward = drop({10, 11, 12, 13});
  const Values backward = drop({13, 12, 11, 10});
  for (std::size_t i = 0; i < 200; ++i) CHECK(forward[i] == backward[(3 - i / 50) * 50 + i % 50]);
  CHECK(drop({10, 10, 11, 11}) != forward);
}

TEST_CASE("element-wise kernels refuse operands that do not fit") {
  Machine machine(cpu_table(), DType::f32, DType::f32, 1);
  const Tensor a = machine.operand("a", {2, 4});
  const Tensor b = machine.operand("b", {4, 2});
  const Tensor narrow = machine.empty({2, 4}, DType::bf16);
  const Tensor gapped = machine.operand("g", {2, 4}, 2);
  Add{a, gapped, a}.check();
  CHECK_THROWS_AS((Add{a, b, a}.check()), InternalError);
  CHECK_THROWS_AS((Add{a, a, narrow}.check()), InternalError);
  ScaleCast{a, narrow}.check();
  CHECK_THROWS_AS((ScaleCast{a, b}.check()), InternalError);
  CHECK_THROWS_AS((ScaleCast{a, View{a.view().data, DType::bf16, {2, 4}, 4}}.check()),
                  InternalError);
  Fill{a, 1}.check();
  CHECK_THROWS_AS((Fill{gapped, 1}.check()), InternalError);
  ActivationForward{Activation::silu, a, a, gapped}.check();
  CHECK_THROWS_AS((ActivationForward{Activation::silu, a, b, a}.check()), InternalError);
  CHECK_THROWS_AS((ActivationForward{static_cast<Activation>(200), a, {}, a}.check()),
                  InternalError);
  const Tensor c = machine.operand("c", {2, 4});
  ActivationBackward{Activation::silu, a, a, a, c, gapped}.check();
  CHECK_THROWS_AS((ActivationBackward{Activation::silu, a, a, c, c, gapped}.check()),
                  InternalError);
  CHECK_THROWS_AS((ActivationBackward{Activation::silu, a, {}, a, c, gapped}.check()),
                  InternalError);
  std::vector<std::int64_t> ids(2);
  const View row_id{ids.data(), DType::i64, {2}, 2};
  Dropout{a, row_id, a, 0.5, {}, 0}.check();
  CHECK_THROWS_AS((Dropout{a, row_id, a, 1.0, {}, 0}.check()), InternalError);
  CHECK_THROWS_AS((Dropout{a, a, a, 0.5, {}, 0}.check()), InternalError);
}

}  // namespace llmtrain::kernels
