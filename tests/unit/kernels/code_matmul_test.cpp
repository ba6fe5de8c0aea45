// Products of codes against plain sums in FP64, and what they refuse.
#include "kernels/code_matmul.hpp"

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/cpu/element.hpp"
#include "kernels/cuda/rules/product_scratch.hpp"
#include "lib/base/error.hpp"
#include "tests/support/formula.hpp"

namespace llmtrain::kernels {

namespace {

using test::formula_below;
using test::formula_weights;

constexpr std::int64_t kM = 32, kN = 48, kK = 64;

/// Codes of finite numbers, in rows that lie `gap` bytes further apart.
std::vector<std::uint8_t> codes(std::string_view name, const NumberFormat& format,
                                std::int64_t count) {
  std::vector<std::uint8_t> made;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto code =
        static_cast<std::uint8_t>(formula_below(name, 256, static_cast<std::size_t>(i)));
    made.push_back(std::isfinite(decode(format, code)) ? code : std::uint8_t{0});
  }
  return made;
}

template <class T>
View view_of(std::vector<T>& values, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return {values.data(), dtype_of<T>, {rows, cols}, stride};
}

/// A product of numbers that lie here.
struct Problem {
  NumberFormat a_format, b_format;
  std::int64_t gap = 0;
  std::vector<std::uint8_t> a, b;
  float a_scale_inv = 0.25f, b_scale_inv = 3e-4f;
  std::vector<bf16> narrow_c, narrow_bias;
  std::vector<float> c, bias;

  Problem(const NumberFormat& of_a, const NumberFormat& of_b, std::int64_t between = 0)
      : a_format(of_a),
        b_format(of_b),
        gap(between),
        a(codes("a", of_a, kM * (kK + gap))),
        b(codes("b", of_b, kN * (kK + gap))),
        narrow_c(kM * (kN + gap)),
        narrow_bias(kN),
        c(formula_weights("c", kM * (kN + gap), 0, 100)),
        bias(formula_weights("bias", kN, 0, 100)) {
    for (std::size_t i = 0; i < narrow_bias.size(); ++i) narrow_bias[i] = to_bf16(bias[i]);
  }

  CodeMatmul kernel(bool wide) {
    return {.a = view_of(a, kM, kK, kK + gap),
            .b = view_of(b, kN, kK, kK + gap),
            .a_scale_inv = {&a_scale_inv, DType::f32, {1}, 1},
            .b_scale_inv = {&b_scale_inv, DType::f32, {1}, 1},
            .c = wide ? view_of(c, kM, kN, kN + gap) : view_of(narrow_c, kM, kN, kN + gap),
            .bias = {},
            .a_format = a_format,
            .b_format = b_format};
  }
  double expected(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t p = 0; p < kK; ++p) {
      sum += double{decode(a_format, a[static_cast<std::size_t>(i * (kK + gap) + p)])} *
             decode(b_format, b[static_cast<std::size_t>(j * (kK + gap) + p)]);
    }
    return sum * a_scale_inv * b_scale_inv;
  }
  /// Of sums, whose terms may cancel.
  double magnitude(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t p = 0; p < kK; ++p) {
      sum += std::abs(double{decode(a_format, a[static_cast<std::size_t>(i * (kK + gap) + p)])} *
                      decode(b_format, b[static_cast<std::size_t>(j * (kK + gap) + p)]));
    }
    return sum * a_scale_inv * b_scale_inv;
  }
};

void run(const CodeMatmul& kernel) {
  Device device(make_cpu_memory(), 1 << 20);
  launch({.device = &device, .table = &cpu_table()}, kernel);
}

}  // namespace

TEST_CASE("a product of codes is the scaled sum of what they stand for") {
  for (const auto& [of_a, of_b] :
       {std::pair(kE4M3, kE4M3), std::pair(kE5M2, kE4M3), std::pair(kE4M3, kE5M2)}) {
    for (const std::int64_t gap : {0, 32}) {
      CAPTURE(of_a.name);
      CAPTURE(of_b.name);
      CAPTURE(gap);
      Problem problem(of_a, of_b, gap);
      const std::vector<float> before = problem.c;
      CodeMatmul narrow = problem.kernel(false), wide = problem.kernel(true);
      narrow.bias = {problem.narrow_bias.data(), DType::bf16, {kN}, kN};
      wide.accumulate = true;
      run(narrow);
      run(wide);
      for (std::int64_t i = 0; i < kM; ++i) {
        for (std::int64_t j = 0; j < kN; ++j) {
          const auto at = static_cast<std::size_t>(i * (kN + gap) + j);
          const double product = problem.expected(i, j), size = problem.magnitude(i, j);
          const double bias = to_float(problem.narrow_bias[static_cast<std::size_t>(j)]);
          CHECK(std::abs(problem.c[at] - (before[at] + product)) <=
                1e-5 * (size + std::abs(before[at])));
          CHECK(std::abs(to_float(problem.narrow_c[at]) - (product + bias)) <=
                1e-5 * size + 0x1p-8 * std::abs(product + bias));
        }
      }
      // A bias in FP32 is added before the only rounding.
      narrow.bias = {problem.bias.data(), DType::f32, {kN}, kN};
      run(narrow);
      CHECK(std::abs(to_float(problem.narrow_c[0]) - (problem.expected(0, 0) + problem.bias[0])) <=
            1e-5 * problem.magnitude(0, 0) +
                0x1p-8 * std::abs(problem.expected(0, 0) + problem.bias[0]));
    }
  }
}

TEST_CASE("products of codes refuse what no GPU multiplies") {
  Problem problem(kE5M2, kE4M3);
  const CodeMatmul good = problem.kernel(true);
  CHECK_NOTHROW(good.check());
  const auto refused = [&](const auto& change, std::string_view why) {
    CodeMatmul bad = good;
    change(bad);
    CHECK_THROWS_WITH_AS(bad.check(), doctest::Contains(std::string(why).c_str()), InternalError);
  };
  refused([](CodeMatmul& mm) { mm.b_format = kE5M2; }, "an operand in e4m3");
  refused([](CodeMatmul& mm) { mm.a_format.mantissa_bits = 1; }, "codes of e4m3 or e5m2");
  refused(
      [](CodeMatmul& mm) {
        mm.a.shape = {kM, kK - 8};
        mm.b.shape = {kN, kK - 8};
      },
      "multiples of 16");
  refused(
      [](CodeMatmul& mm) {
        mm.c.shape = {kM, kN - 8};
        mm.b.shape = {kN - 8, kK};
      },
      "multiples of 16");
  refused([](CodeMatmul& mm) { mm.a.row_stride += 8; }, "16 elements apart");
  refused(
      [&](CodeMatmul& mm) {
        mm.bias = {problem.bias.data(), DType::f32, {kN}, kN};
      },
      "beside c in bf16");
  CodeMatmul narrow = problem.kernel(false);
  narrow.bias = {problem.narrow_bias.data(), DType::bf16, {kN}, kN};
  narrow.accumulate = true;
  CHECK_THROWS_AS(narrow.check(), InternalError);
}

TEST_CASE("a product of codes that is timed has room for its scales") {
  Problem problem(kE4M3, kE4M3);
  const CodeMatmul mm = problem.kernel(true);
  CHECK(mm.cost().flops == 2.0 * kM * kN * kK);
  const cuda::ProductScratch at(mm, 256);
  CHECK(at.scales % 256 == 0);
  CHECK(at.scales >= at.c + 4 * kM * kN);
  CHECK(at.total_bytes == at.scales + 512);
}

}  // namespace llmtrain::kernels
