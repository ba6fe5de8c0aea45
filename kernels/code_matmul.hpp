#pragma once
/// Matrix products of codes of eight bits (kernels/quantize), in the one form that GPUs multiply
/// them in: the sum is along the rows of both operands.

#include <optional>

#include "kernels/matmul.hpp"
#include "kernels/quantize/number_format.hpp"

namespace llmtrain::kernels {

/// c = (sum over p of a[i, p] b[j, p]) * a_scale_inv * b_scale_inv (+ bias[j]), or c += that: a and
/// b are the values that codes stand for, products are exact, sums FP32. The forms of a linear
/// layer y = x w^T:
///   forward          y[rows, out]  = codes of x [rows, in], codes of w [out, in]
///   input gradient   dx[rows, in]  = codes of dy [rows, out], codes of w transposed [in, out]
///   weight gradient  dw[out, in]  += codes of dy and of x transposed, [out, rows] and [in, rows]
/// Sizes are those of takes(). k = 0 gives zeros (or bias).
struct CodeMatmul {
  static constexpr std::string_view name = "code_matmul";
  View a, b;                      // uint8 [m, k] and [n, k], strided
  View a_scale_inv, b_scale_inv;  // FP32 [1]
  View c;                         // bf16 | fp32 [m, n], strided
  View bias;                      // bf16 | fp32 [n]; only for bf16, without accumulate
  NumberFormat a_format = kE4M3, b_format = kE4M3;  // e4m3 or e5m2, not e5m2 twice
  bool accumulate = false;
  /// The device may keep fewer bits of sums (Hopper: about 14), which is faster.
  bool fast_sums = false;

  /// Sizes, and distances between rows, are multiples of this.
  static constexpr std::int64_t kUnit = 16;
  static constexpr bool takes(std::int64_t m, std::int64_t n, std::int64_t k) {
    return m % kUnit == 0 && n % kUnit == 0 && k % kUnit == 0;
  }

  std::int64_t m() const { return c.rows(); }
  std::int64_t n() const { return c.cols(); }
  std::int64_t k() const { return a.cols(); }
  void check() const;
  Cost cost() const;
  DType dtype() const { return a.dtype; }
  /// The last as Matmul's, by what the forms differ in: weight gradients accumulate, and a forward
  /// has fast sums.
  std::array<std::int64_t, 4> sizes() const {
    return {m(), n(), k(), accumulate ? 2 : fast_sums ? 0 : 1};
  }
  std::uint64_t workspace_bytes(int) const { return 0; }
};

/// A product as the choice of its algorithm sees it: of numbers, or of codes.
struct Product {
  /// Of codes: what a Matmul says of their views, whose operands are uint8; nobody launches it.
  Matmul mm;
  std::optional<CodeMatmul> codes;

  Product(const Matmul& product) : mm(product) {}  // NOLINT(google-explicit-constructor)
  Product(const CodeMatmul& product)               // NOLINT(google-explicit-constructor)
      : mm{.a = product.a,
           .b = product.b,
           .c = product.c,
           .bias = product.bias,
           .transpose_b = true,
           .accumulate = product.accumulate},
        codes(product) {}
};

}  // namespace llmtrain::kernels
