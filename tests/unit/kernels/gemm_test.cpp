// The own product, called directly, because processors with AVX-512 mostly do not choose it.
#include "kernels/cpu/fast/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
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
  std::vector<std::byte> memory;
  View view;
  Matrix(std::string_view name, std::int64_t rows, std::int64_t cols, DType dtype)
      : memory(static_cast<std::size_t>(rows * (cols + kGap)) * size_of(dtype)) {
    view = {memory.data(), dtype, {rows, cols}, cols + kGap};
    const View all{memory.data(), dtype, {rows, cols + kGap}, cols + kGap};
    write_rows(all, normals(name, all.numel()));
  }
  double at(std::int64_t i, std::int64_t j) const {
    return view.dtype == DType::bf16 ? to_float(view.row<bf16>(i)[j]) : view.row<float>(i)[j];
  }
};

/// How a product is asked for: dtypes of operands and result, and its form.
struct Case {
  DType in, out;
  bool transpose_a, transpose_b, accumulate;
  std::optional<DType> bias;
};

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
  std::vector<std::byte> workspace(product.workspace_bytes(threads));
  fast::gemm(product, threads, workspace.data(), matmul_workspace(product, threads));

  double worst = 0;  // in units of what may be: rounding of the sum, then of a bf16 result
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
    if (how.out == DType::bf16) limit += 0x1p-8 * std::abs(sum);
    worst = std::max(worst, std::abs(c.at(i, j) - sum) / limit);
  }
  CHECK(worst <= 1);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = s.n; j < s.n + kGap; ++j) CHECK(c.at(i, j) == before.at(i, j));
  }
  return c.memory;
}

}  // namespace

// One element, tiles of the kernel cut short, and every block length passed by a little: 6, 96 and
// 1,024 rows, 8, 16 or 32 and 768 columns, 4, 32, 384 and twice 384 of the sum.
TEST_CASE("the own product is right in every form and dtype, whatever the number of threads") {
  constexpr Sizes kSizes[] = {{1, 1, 1},      {5, 17, 3},     {7, 33, 389},   {1, 1600, 40},
                              {7, 1600, 800}, {300, 65, 771}, {97, 769, 387}, {1030, 800, 391}};
  constexpr DType f32 = DType::f32;
  constexpr DType bf16 = DType::bf16;
  constexpr Case kCases[] = {
      {f32, f32, false, true, false, f32},   {f32, f32, false, false, false, {}},
      {f32, f32, true, false, true, {}},     {f32, f32, true, true, true, {}},
      {bf16, f32, true, false, true, {}},    {bf16, f32, false, true, false, f32},
      {bf16, bf16, false, true, false, f32}, {bf16, bf16, true, false, false, bf16},
      {bf16, bf16, false, false, true, {}},
  };
  for (const Sizes& sizes : kSizes) {
    for (const Case& how : kCases) {
      CAPTURE(sizes.m);
      CAPTURE(sizes.n);
      CAPTURE(sizes.k);
      CAPTURE(to_string(how.in));
      CAPTURE(to_string(how.out));
      CAPTURE(how.transpose_a);
      CAPTURE(how.transpose_b);
      const std::vector<std::byte> one = multiply(sizes, how, 1);
      for (const int threads : {2, 3, 7}) {
        CAPTURE(threads);
        CHECK(multiply(sizes, how, threads) == one);
      }
    }
  }
}

TEST_CASE("a product whose a is too large to be packed at once is right") {
  const Sizes large{13, 800, 22'000};
  const Case how{DType::f32, DType::f32, false, true, false, {}};
  const std::vector<std::byte> one = multiply(large, how, 1);
  CHECK(multiply(large, how, 2) == one);
}

// What oneDNN refuses is done in pieces of the sum, in the memory of the whole: it may be too large
// to be packed at once where a piece is not.
TEST_CASE("a piece of a product keeps to the memory of the whole") {
  const Sizes s{96, 800, 22'000};
  const std::int64_t depth = 500;
  const Matrix a("a", s.m, s.k, DType::f32), b("b", s.n, s.k, DType::f32);
  const Matrix c("c", s.m, s.n, DType::f32);
  const Matmul whole{a.view, b.view, c.view, {}, false, true, false};
  Matmul piece = whole;
  piece.a.shape = {s.m, depth};
  piece.b.shape = {s.n, depth};
  const MatmulWorkspace layout = matmul_workspace(whole, 2);
  CHECK_FALSE(layout.packs_a_once);
  CHECK(matmul_workspace(piece, 2).packs_a_once);
  constexpr std::size_t kBeyond = std::size_t{1} << 20;
  std::vector<std::byte> workspace(layout.total_bytes + kBeyond, std::byte{7});
  fast::gemm(piece, 2, workspace.data(), layout);
  CHECK(std::all_of(workspace.end() - kBeyond, workspace.end(),
                    [](std::byte byte) { return byte == std::byte{7}; }));
}

// Few rows and many pieces of the sum: threads meet in the same rows all the time.
TEST_CASE("the own product is the same each time, whichever thread is ahead") {
  const Sizes s{13, 300, 9000};
  const Matrix a("a", s.m, s.k, DType::f32), b("b", s.n, s.k, DType::f32);
  const auto product = [&](int threads) {
    const Matrix c("c", s.m, s.n, DType::f32);
    const Matmul mm{a.view, b.view, c.view, {}, false, true, false};
    std::vector<std::byte> workspace(mm.workspace_bytes(threads));
    fast::gemm(mm, threads, workspace.data(), matmul_workspace(mm, threads));
    return c.memory;
  };
  const std::vector<std::byte> one = product(1);
  int different = 0;
  for (int i = 0; i < 500; ++i) {
    for (const int threads : {2, 3, 7}) different += product(threads) == one ? 0 : 1;
  }
  CHECK(different == 0);
}

}  // namespace llmtrain::kernels
