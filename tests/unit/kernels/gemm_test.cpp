// The own FP32 product, called directly, because processors with AVX-512 do not choose it.
#include "kernels/cpu/fast/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/matmul_workspace.hpp"
#include "tests/unit/kernels/values.hpp"

namespace llmtrain::kernels {

namespace {

constexpr std::int64_t kGap = 3;  // elements between the end of a row and the next

struct Sizes {
  std::int64_t m, n, k;
};

struct Matrix {
  std::vector<float> memory;
  View view;
  Matrix(std::string_view name, std::int64_t rows, std::int64_t cols)
      : memory(static_cast<std::size_t>(rows * (cols + kGap))) {
    const std::vector<double> values = normals(name, std::ssize(memory));
    std::copy(values.begin(), values.end(), memory.begin());
    view = {memory.data(), DType::f32, {rows, cols}, cols + kGap};
  }
  double at(std::int64_t i, std::int64_t j) const { return view.row<float>(i)[j]; }
};

struct Case {
  bool transpose_a, transpose_b, accumulate, bias;
};

/// c as gemm() leaves it, gaps included; a sample of its elements is checked in double.
std::vector<float> multiply(const Sizes& s, const Case& how, int threads) {
  const Matrix a("a", how.transpose_a ? s.k : s.m, how.transpose_a ? s.m : s.k);
  const Matrix b("b", how.transpose_b ? s.n : s.k, how.transpose_b ? s.k : s.n);
  const Matrix bias("bias", 1, s.n);
  const Matrix before("c", s.m, s.n);
  Matrix c = before;
  c.view.data = c.memory.data();
  std::vector<std::byte> scratch(fast::gemm_scratch_bytes(threads));
  fast::gemm({a.view, b.view, c.view, how.bias ? bias.view : View{}, how.transpose_a,
              how.transpose_b, how.accumulate},
             threads, scratch.data());

  double worst = 0;
  const std::int64_t step = std::max<std::int64_t>(1, s.m * s.n / 997);
  for (std::int64_t e = 0; e < s.m * s.n; e += step) {
    const std::int64_t i = e / s.n;
    const std::int64_t j = e % s.n;
    double sum = how.accumulate ? before.at(i, j) : how.bias ? bias.at(0, j) : 0;
    for (std::int64_t p = 0; p < s.k; ++p) {
      sum +=
          (how.transpose_a ? a.at(p, i) : a.at(i, p)) * (how.transpose_b ? b.at(j, p) : b.at(p, j));
    }
    worst = std::max(worst, std::abs(c.at(i, j) - sum));
  }
  CHECK(worst <= 2e-6 * std::sqrt(static_cast<double>(s.k)) + 2e-6);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t g = 0; g < kGap; ++g) {
      const auto at = static_cast<std::size_t>(i * (s.n + kGap) + s.n + g);
      CHECK(c.memory[at] == before.memory[at]);
    }
  }
  return c.memory;
}

}  // namespace

// One element, tiles of the kernel cut short, and every block length passed by a little: 6 and 144
// rows, 8, 16 or 32 and 1,536 columns, 256 of the sum.
TEST_CASE("the own product is right in every form, whatever the number of threads") {
  constexpr Sizes kSizes[] = {{1, 1, 1},     {5, 17, 3},     {7, 33, 257},
                              {1, 1600, 40}, {300, 65, 513}, {145, 1537, 259}};
  constexpr Case kCases[] = {{false, true, false, true},
                             {false, false, false, false},
                             {true, false, true, false},
                             {true, true, true, false}};
  for (const Sizes& sizes : kSizes) {
    for (const Case& how : kCases) {
      CAPTURE(sizes.m);
      CAPTURE(sizes.n);
      CAPTURE(sizes.k);
      CAPTURE(how.transpose_a);
      CAPTURE(how.transpose_b);
      const std::vector<float> one = multiply(sizes, how, 1);
      for (const int threads : {2, 3, 7}) {
        CAPTURE(threads);
        CHECK(multiply(sizes, how, threads) == one);
      }
    }
  }
}

TEST_CASE("the own product keeps to the library's share of the workspace") {
  const View any{nullptr, DType::f32, {8, 8}, 8};
  for (const int threads : {1, 2, 64}) {
    CHECK(fast::gemm_scratch_bytes(threads) <=
          matmul_workspace({any, any, any, {}}, threads).scratch_bytes);
  }
}

}  // namespace llmtrain::kernels
