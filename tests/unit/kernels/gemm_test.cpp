// The matrix product by itself: blocks, panels and threads. Its forms are compared with the
// reference in matmul_test.cpp.
#include "kernels/cpu/fast/gemm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/matmul_workspace.hpp"
#include "tests/support/rounding.hpp"
#include "tests/unit/kernels/trial.hpp"
#include "tests/unit/kernels/values.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::int64_t kGap = 3;  // elements between the end of a row and the next

struct Sizes {
  std::int64_t m, n, k;
};

struct Matrix {
  std::vector<std::byte> memory;
  View view;
  Matrix(std::string_view name, std::int64_t rows, std::int64_t cols, DType dtype)
      : memory(static_cast<std::size_t>(rows * (cols + kGap)) * size_of(dtype)) {
    view = {memory.data(), dtype, {rows, cols}, cols + kGap};
    const View all{memory.data(), dtype, {rows, cols + kGap}, cols + kGap};
    write_rows(all, normals(name, all.numel()));
  }
  double at(std::int64_t i, std::int64_t j) const {
    double value = 0;
    with_type(view.dtype, [&]<class T>() { value = widen(view.row<T>(i)[j]); });
    return value;
  }
};

/// How a product is asked for: dtypes of operands and result, and its form.
struct Case {
  DType in, out;
  bool transpose_a, transpose_b, accumulate;
  std::optional<DType> bias;
};

/// The product in memory of the size that it asks for, and what lies behind it left alone.
void multiply_within(const Matmul& product, int threads) {
  constexpr std::size_t kBeyond = 4096;
  const std::size_t bytes = product.workspace_bytes(threads);
  std::vector<std::byte> workspace(bytes + kBeyond, std::byte{7});
  fast::gemm(product, threads, workspace.data());
  CHECK(std::all_of(workspace.end() - kBeyond, workspace.end(),
                    [](std::byte byte) { return byte == std::byte{7}; }));
}

/// c as gemm() leaves it, gaps included; a sample of its elements is checked in double.
std::vector<std::byte> multiply(const Sizes& s, const Case& how, int threads) {
  const Matrix a("a", how.transpose_a ? s.k : s.m, how.transpose_a ? s.m : s.k, how.in);
  const Matrix b("b", how.transpose_b ? s.n : s.k, how.transpose_b ? s.k : s.n, how.in);
  const Matrix bias("bias", 1, s.n, how.bias.value_or(DType::f32));
  const Matrix before("c", s.m, s.n, how.out);
  const Matrix c("c", s.m, s.n, how.out);
  const Matmul product{
      a.view,          b.view,          c.view,        how.bias ? bias.view : View{},
      how.transpose_a, how.transpose_b, how.accumulate};
  multiply_within(product, threads);

  double worst = 0;  // in units of what may be: rounding of the sum, then of a narrow result
  const std::int64_t step = std::max<std::int64_t>(1, s.m * s.n / 997);
  for (std::int64_t e = 0; e < s.m * s.n; e += step) {
    const std::int64_t i = e / s.n;
    const std::int64_t j = e % s.n;
    double sum = how.accumulate ? before.at(i, j) : how.bias ? bias.at(0, j) : 0;
    for (std::int64_t p = 0; p < s.k; ++p) {
      sum +=
          (how.transpose_a ? a.at(p, i) : a.at(i, p)) * (how.transpose_b ? b.at(j, p) : b.at(p, j));
    }
    double limit = 2e-6 * std::sqrt(static_cast<double>(s.k)) + 2e-6;
    if (how.out != DType::f32) limit += test::rounding_of(how.out) * std::abs(sum);
    worst = std::max(worst, std::abs(c.at(i, j) - sum) / limit);
  }
  CHECK(worst <= 1);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = s.n; j < s.n + kGap; ++j) CHECK(c.at(i, j) == before.at(i, j));
  }
  return c.memory;
}

constexpr DType f32 = DType::f32;
constexpr DType bf16 = DType::bf16;
constexpr DType f16 = DType::f16;
constexpr Case kCases[] = {
    {f32, f32, false, true, false, f32},   {f32, f32, false, false, false, {}},
    {f32, f32, true, false, true, {}},     {f32, f32, true, true, true, {}},
    {bf16, f32, true, false, true, {}},    {bf16, f32, false, true, false, f32},
    {bf16, bf16, false, true, false, f32}, {bf16, bf16, true, false, false, bf16},
    {bf16, bf16, false, false, true, {}},  {bf16, f32, true, true, false, {}},
    {f16, f32, true, false, true, {}},     {f16, f32, false, true, false, f32},
    {f16, f16, false, true, false, f32},   {f16, f16, true, false, false, f16},
    {f16, f16, false, false, true, {}},    {f16, f32, true, true, false, {}},
};

/// Every case at these sizes; `others` are numbers of threads that must give the bits of one.
void multiply_all(std::initializer_list<Sizes> all_sizes, std::initializer_list<int> others) {
  for (const Sizes& sizes : all_sizes) {
    for (const Case& how : kCases) {
      CAPTURE(sizes.m);
      CAPTURE(sizes.n);
      CAPTURE(sizes.k);
      CAPTURE(to_string(how.in));
      CAPTURE(to_string(how.out));
      CAPTURE(how.transpose_a);
      CAPTURE(how.transpose_b);
      const std::vector<std::byte> one = multiply(sizes, how, 1);
      for (const int threads : others) {
        CAPTURE(threads);
        CHECK(multiply(sizes, how, threads) == one);
      }
    }
  }
}

}  // namespace

// One element, tiles of the kernel cut short, and every block length passed by a little: 6, 12, 96
// and 1,024 rows, 8, 16 or 32 and 768 columns, 2, 4, 32, 384, 768 and twice as much of the sum.
TEST_CASE("the product is right in every form and dtype, whatever the number of threads") {
  multiply_all({{1, 1, 1},
                {5, 17, 3},
                {19, 49, 33},
                {7, 33, 389},
                {1, 1600, 40},
                {7, 1600, 800},
                {300, 65, 771},
                {97, 769, 387},
                {13, 40, 1541},
                {1030, 800, 391}},
               {2, 3, 7});
}

TEST_CASE("the product is right with every instruction set that this processor has") {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    CAPTURE(hwy::TargetName(target));
    const trial::InstructionSet only(target);
    multiply_all({{1, 1, 1}, {5, 17, 3}, {19, 49, 33}, {7, 800, 389}, {13, 40, 1541}}, {2, 3});
  }
}

TEST_CASE(
    "bf16 is multiplied as it is where the processor does, unless it is told to be a lesser one") {
  CHECK(fast::gemm_multiplies_bf16() == (__builtin_cpu_supports("avx512bf16") > 0));
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    CAPTURE(hwy::TargetName(target));
    const trial::InstructionSet only(target);
    if (target > HWY_AVX3) CHECK_FALSE(fast::gemm_multiplies_bf16());
  }
}

// A product of bf16 is exact in FP32, and so is a sum of few whole numbers: whoever takes the wrong
// element of a pair, or one of another line, is seen here and not hidden by rounding.
TEST_CASE("bf16 products of small whole numbers are exact") {
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{14, 35, 5}, {25, 70, 67}, {3, 9, 801}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Matrix a("a", transpose_a ? k : m, transpose_a ? m : k, bf16);
        const Matrix b("b", transpose_b ? n : k, transpose_b ? k : n, bf16);
        const Matrix c("c", m, n, f32);
        const auto set = [](const Matrix& x, int factor, int modulus) {
          for (std::int64_t e = 0; e < x.view.numel(); ++e) {
            x.view.row<llmtrain::bf16>(e / x.view.cols())[e % x.view.cols()] =
                to_bf16(static_cast<float>(e * factor % modulus - modulus / 2));
          }
        };
        set(a, 7, 13);
        set(b, 5, 11);
        multiply_within({a.view, b.view, c.view, {}, transpose_a, transpose_b, false}, 2);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (std::int64_t p = 0; p < k; ++p) {
              sum +=
                  (transpose_a ? a.at(p, i) : a.at(i, p)) * (transpose_b ? b.at(j, p) : b.at(p, j));
            }
            wrong += c.at(i, j) == sum ? 0 : 1;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("a product whose a is too large to be packed at once is right") {
  const Sizes large{13, 800, 22'000};
  for (const DType in : {f32, bf16, f16}) {
    const Case how{in, f32, false, true, false, {}};
    const std::vector<std::byte> one = multiply(large, how, 1);
    CHECK(multiply(large, how, 2) == one);
  }
}

// Few rows and many pieces of the sum.
TEST_CASE("the product is the same each time, whichever thread is ahead") {
  const Sizes s{13, 300, 9000};
  for (const DType in : {f32, bf16, f16}) {
    const Matrix a("a", s.m, s.k, in), b("b", s.n, s.k, in);
    const auto product = [&](int threads) {
      const Matrix c("c", s.m, s.n, f32);
      const Matmul mm{a.view, b.view, c.view, {}, false, true, false};
      std::vector<std::byte> workspace(mm.workspace_bytes(threads));
      fast::gemm(mm, threads, workspace.data());
      return c.memory;
    };
    const std::vector<std::byte> one = product(1);
    int different = 0;
    for (int i = 0; i < 300; ++i) {
      for (const int threads : {2, 3, 7}) different += product(threads) == one ? 0 : 1;
    }
    CHECK(different == 0);
  }
}

}  // namespace llmtrain::kernels
